"""Keeps a written answer graded in a new submission if it is still the one that was marked."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader.api import Grade, Gradebook
from nbgrader.converters.base import BaseConverter
from nbgrader.preprocessors import SaveAutoGrades
from nbgrader.utils import is_solution
from sqlalchemy.exc import SQLAlchemyError

from autograder.grading.gradebook.database import by_cell

DROPPED = "({:g} points before this question was dropped.)"

Answer = tuple[str, Any]  # its text and the pictures pasted into it
GradedAnswers = dict[tuple[str, str], dict[str, Answer]]  # {(student, lab): {grade id: answer}}


class SaveGrades(SaveAutoGrades):
    """nbgrader's own class makes every manual score wait for a person whenever it grades again."""

    def _add_score(self, cell: NotebookNode, resources: dict[str, Any]) -> None:
        super()._add_score(cell, resources)
        grade_id = cell.metadata.nbgrader.grade_id
        # ``parent``: a SubmissionReader, created before the converter removed the notebooks.
        graded = self.parent.graded.get((self.student_id, self.assignment_id), {})
        is_dropped = not cell.metadata.nbgrader.points  # so that nobody has to grade it
        if not is_solution(cell) or (graded.get(grade_id) != _answer(cell) and not is_dropped):
            return
        names = grade_id, self.notebook_id, self.assignment_id, self.student_id
        grade = self.gradebook.find_grade(*names)
        if grade.manual_score is not None or is_dropped:
            grade.needs_manual_grade = False
            if is_dropped and grade.manual_score:
                # Others have no mark for it. The comment keeps it, for those who look for it.
                comment = self.gradebook.find_comment(*names)
                note = DROPPED.format(grade.manual_score)
                comment.manual_comment = "\n".join(filter(None, [comment.manual_comment, note]))
                grade.manual_score = None
            self.gradebook.db.commit()


def graded_answers(converter: BaseConverter) -> GradedAnswers:
    """The answers that a person has graded, as they are in autograded/.

    Of the submissions that ``converter`` is about to grade.
    """
    course = converter.coursedir
    pattern = re.compile(converter._format_source("(?P<lab>.*)", "(?P<student>.*)", escape=True))
    found: GradedAnswers = {}
    try:
        with Gradebook(course.db_url, course.course_id) as gradebook:
            for match in filter(None, map(pattern.fullmatch, converter.assignments)):
                student, lab = match["student"], match["lab"]
                columns = (Grade.manual_score, Grade.needs_manual_grade)
                marks = by_cell(gradebook, lab, columns, student).get(student, {})
                graded = {c for c, (mark, waits) in marks.items() if mark is not None and not waits}
                if graded:
                    folder = course.format_path(course.autograded_directory, student, lab)
                    found[student, lab] = _answers(Path(folder, f"{lab}.ipynb"), graded)
    except SQLAlchemyError as error:  # nbgrader opens the gradebook next, and explains it
        logging.getLogger(__name__).debug("cannot read the gradebook: %s", error)
    return found


def _answers(path: Path, graded: set[str]) -> dict[str, Answer]:
    try:
        notebook = nbformat.reads(path.read_text(encoding="utf-8"), nbformat.NO_CONVERT)
    except (OSError, ValueError):  # none, or half of one: what was graded is not known
        return {}
    ids = [(cell.metadata.get("nbgrader", {}).get("grade_id"), cell) for cell in notebook.cells]
    return {grade_id: _answer(cell) for grade_id, cell in ids if grade_id in graded}


def _answer(cell: NotebookNode) -> Answer:
    return cell.source.strip(), cell.get("attachments", {})
