"""The contents of a student's feedback page: the values for its template.

Everything from the student passes through ``inert``; tables and pictures come from the grader's
record, so that nothing in a notebook can imitate them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from markupsafe import Markup, escape
from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from autograder.build.cells import grade_id, is_answer, is_check
from autograder.grading.course_time import to_course_time
from autograder.grading.record.record import Record
from autograder.grading.submission.attachments import MAX_CHARS
from autograder.pages.html import inert
from autograder.pages.html.page import prose
from autograder.pages.record_of import check_output
from autograder.pages.scores import Mark, Scores, digest

MAX_CELLS = 400
MAX_PAGE = 3_000_000 + MAX_CHARS  # characters of cells, outputs and pasted pictures
NOTHING = Markup("")
OWN_CELL = "own-"  # prefix of the ids of the student's own cells
NOTE_CELL = "note"  # lists the repairs, which are at the top of the page


@dataclass(frozen=True)
class ShownExercise:
    grade_id: str
    heading: Markup
    mark: Mark | None  # None: the gradebook has none for this cell
    cases: list[bool]  # passed or not
    unwritten: bool
    table: Markup
    sentence: str  # why there is no table
    pictures: Sequence[Mapping[str, Any]]  # title and svg; or title, heads and rows
    comments: list[Markup]
    only_visible: bool  # only visible cases, and no marks
    is_written: bool  # graded by a person

    @property
    def css_class(self) -> str:
        return self.mark.outcome if self.mark else "pending"

    @property
    def share(self) -> float:
        if self.mark is None or self.mark.max_points <= 0:
            return 0.0
        return min(self.mark.points / self.mark.max_points, 1.0)

    @property
    def status(self) -> str:
        """A few words on where the points come from."""
        if self.mark is None and not self.only_visible:
            return "not in the gradebook"
        if self.mark and self.mark.is_pending:
            return "waiting for manual grading"
        if self.mark and self.mark.by_hand:
            return "graded manually"
        if self.mark and self.is_written:  # a person does not have to grade an unchanged answer
            return "empty"
        if self.unwritten:
            return "not written yet"
        kind = "visible cases" if self.only_visible else "cases"
        return f"{sum(self.cases)} of {len(self.cases)} {kind}" if self.cases else ""


@dataclass(frozen=True)
class Cell:
    kind: str  # "prose", "code"
    source: Markup
    role: str  # "answer", "check", "own" or ""
    outputs: list[Markup]
    exercise: ShownExercise | None  # that this cell grades
    comment: Markup


def content_of(
    notebook: NotebookNode,
    lab: str,
    scores: Scores,
    record: Record | None,
    only_visible: bool = False,
) -> dict[str, Any]:
    """The values of page.html. ``only_visible``: see visible_page.py."""
    found = _exercises(notebook, scores, record, only_visible)
    exercises = {exercise.grade_id: exercise for exercise in found}
    lists_repairs = bool(record and record.notes)
    shown = [c for c in notebook.cells if not (lists_repairs and c.get("id") == NOTE_CELL)]
    cells: list[Cell] = []
    length = 0
    for cell in shown[:MAX_CELLS]:
        rendered = _cell(cell, exercises, scores.comments)
        length += len(rendered.source) + sum(map(len, rendered.outputs))
        if length > MAX_PAGE:
            break
        cells.append(rendered)
    return {
        "lab": lab,
        "title": next(filter(None, (_heading(c, level=1) for c in notebook.cells)), lab),
        "when": _when(scores),
        "scores": scores,
        "record": record,
        "digest": digest(scores, record.key if record else ""),
        "exercises": list(exercises.values()),
        "cells": cells,
        "only_visible": only_visible,
        "left_out": len(shown) - len(cells),  # cells that would make the page too long
    }


def _when(scores: Scores) -> str:
    at, due = scores.submitted_at, scores.due_at
    if at is None:
        return ""
    until = f", due {_date(due)}{': late' if at > due else ''}" if due else ""
    return f"submitted {_date(at)}{until}"


def _exercises(
    notebook: NotebookNode, scores: Scores, record: Record | None, only_visible: bool
) -> Iterator[ShownExercise]:
    """Exercises in the notebook's order. A comment belongs to the same exercise as its answer."""
    heading, comments = NOTHING, list[Markup]()
    for cell in notebook.cells:
        heading = _heading(cell) or heading
        name = grade_id(cell)
        if not name:
            continue
        if name in scores.comments:
            comments.append(Markup(inert.markdown(scores.comments[name])))
        if not cell.metadata.nbgrader.get("grade") and not cell.metadata.nbgrader.get("task"):
            continue
        decided = record.verdicts.get(name, {}) if record else {}
        table, sentence = check_output(record, name)
        yield ShownExercise(
            grade_id=name,
            heading=heading or escape(name),
            mark=scores.marks.get(name),
            cases=[case["passed"] for case in decided.get("cases", [])],
            unwritten=bool(decided.get("unwritten")),
            table=Markup(table),
            sentence=sentence,
            pictures=record.pictures.get(name, []) if record else (),
            comments=comments,
            only_visible=only_visible,
            is_written=not is_check(cell),
        )
        comments = []


def _cell(
    cell: NotebookNode, exercises: Mapping[str, ShownExercise], comments: Mapping[str, str]
) -> Cell:
    name = grade_id(cell) or ""
    exercise = exercises.get(name)
    comment = Markup(inert.markdown(comments[name])) if name in comments else NOTHING
    role = "own" if str(cell.get("id", "")).startswith(OWN_CELL) else ""
    role = "answer" if is_answer(cell) else "check" if exercise else role
    if cell.cell_type != "code":
        prose = Markup(inert.markdown(cell.source, cell.get("attachments")))
        return Cell("prose", prose, role, [], exercise, comment)
    # The outputs of a graded check are shown above, from the record.
    shown_above = is_check(cell) and exercise is not None and exercise.cases
    outputs = [] if shown_above else [Markup(inert.output(out)) for out in cell.get("outputs", [])]
    return Cell("code", code(cell.source), role, outputs, exercise, comment)


def code(source: str) -> Markup:
    if len(source) > inert.MAX_TEXT:
        return Markup(inert.text(source))
    formatter: Any = HtmlFormatter(cssclass="highlight")
    return Markup(highlight(source, PythonLexer(stripnl=False), formatter))


def _heading(cell: NotebookNode, level: int = 2) -> Markup:
    """A heading from one of the lab's own cells: a student's text cannot name a section."""
    if cell.cell_type != "markdown" or is_answer(cell) or str(cell.id).startswith(OWN_CELL):
        return NOTHING
    found = re.search(rf"^#{{{level}}} +(.+?) *$", cell.source, re.MULTILINE)
    return prose(found[1]) if found else NOTHING


def _date(at: datetime) -> str:
    here = to_course_time(at)
    return f"{here.day} {here:%B %Y, %H:%M %Z}"
