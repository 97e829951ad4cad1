"""The feedback page without hidden cases, for students who may still submit again.

It shows the cases that a student's own check shows, as they ran when the submission was graded.
Points would reveal how many hidden cases pass, and a picture of a run could contain data that the
answer saw in one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace

import nbformat

from autograder.build.cells import grade_id, is_check
from autograder.evaluation.verdict import Verdict
from autograder.grading.record.grade_submission import state_of
from autograder.grading.record.marks import write_verdict
from autograder.grading.record.record import Record, State
from autograder.pages.feedback.student_page import content_of
from autograder.pages.html.page import render
from autograder.pages.record_of import check_output
from autograder.pages.scores import Scores


def visible_page(lab: str, scores: Scores, record: Record) -> str:
    """The page as HTML. ``scores`` provides the student's name and the times."""
    shown = visible_record(record)
    about = replace(scores, marks={}, comments={}, penalty=0.0, max_points=0.0)
    notebook = nbformat.from_dict(shown.notebook)
    content = content_of(notebook, lab, about, shown, only_visible=True)
    return render("feedback/page.html", **content)


def visible_record(record: Record) -> Record:
    """The record without hidden cases, points, pictures and flags."""
    full = {name: Verdict.from_plain(plain) for name, plain in record.verdicts.items()}
    visible = {name: _visible(verdict) for name, verdict in full.items()}
    # {name of an answer: why it never reached its check}
    missing = {name: why for name in full if (why := _why_missing(record, name))}
    notebook = nbformat.from_dict(copy.deepcopy(record.notebook))
    for cell in notebook.cells:
        name = grade_id(cell)
        if name in visible:
            write_verdict(cell, visible[name], missing.get(name, ""))
        elif is_check(cell):
            cell.outputs = []
    state, reason = record.state, record.reason
    if reason in _hidden_reasons(full.values(), state):
        state, reason = state_of(
            visible.values(), tampering=(), limits_hit=(), missing=[*missing.values()]
        )
    return replace(
        record,
        key="",
        state=state,
        reason=reason,
        flags=(),
        notebook=dict(notebook),
        points={},
        verdicts={name: verdict.to_plain() for name, verdict in visible.items()},
        pictures={},
        timing={},
    )


def _visible(verdict: Verdict) -> Verdict:
    """The verdict without hidden cases, and without its note, which may refer to them."""
    return replace(verdict, cases=tuple(c for c in verdict.cases if not c.hidden), note="")


def _why_missing(record: Record, name: str) -> str:
    table, why = check_output(record, name)
    return "" if table else why


def _hidden_reasons(verdicts: Iterable[Verdict], state: State) -> set[str]:
    """Reasons for ``state`` that name a hidden case, worded as in `grade_submission.state_of`."""
    return {
        f"{verdict.answer}, {case.title}: {case.diagnosis}"
        for verdict in verdicts
        for case in verdict.cases
        if case.hidden and case.violation == state
    }
