"""A page with one written question and all students' answers, in addition to formgrader's own.

This module reads the gradebook; the page stores marks and comments through formgrader's requests.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbgrader.api import Gradebook, GradeCell, MissingEntry
from nbgrader.coursedir import CourseDirectory
from tornado import web

from autograder.build.cells import grade_id
from autograder.build.rubric import Question, read_rubric
from autograder.build.text import SourceError
from autograder.pages.html import inert
from autograder.pages.html.page import render

URL = r"/shardlab/written/(?P<lab>[^/]+)/?(?P<question>[^/]*)/?"
SCRIPT = Path(__file__).with_name("written.js")


@dataclass(frozen=True)
class Answer:
    """``html`` is inert. ``grade`` and ``comment`` are ids in the gradebook."""

    grade: str
    comment: str
    student: str
    html: str
    mark: float | None
    extra_credit: float | None
    text: str
    is_graded: bool


def written_questions(gradebook: Gradebook, lab: str) -> dict[str, GradeCell]:
    """{name: cell} of the questions answered in prose. Raises MissingEntry without such a lab."""
    notebooks = gradebook.find_assignment(lab).notebooks
    cells = [cell for notebook in notebooks for cell in notebook.grade_cells]
    return {cell.name: cell for cell in cells if cell.cell_type == "markdown"}


def answers(gradebook: Gradebook, coursedir: CourseDirectory, cell: GradeCell) -> list[Answer]:
    """One answer per submission with this question, in an order that does not reveal its author."""
    lab, found = cell.notebook.assignment.name, []
    for submission in sorted(cell.notebook.submissions, key=lambda one: str(one.id)):
        student = submission.student
        folder = coursedir.format_path(coursedir.autograded_directory, student.id, lab)
        grade = next((one for one in submission.grades if one.name == cell.name), None)
        comment = next((one for one in submission.comments if one.name == cell.name), None)
        if grade is None or comment is None:
            continue
        names = ", ".join(filter(None, [student.last_name, student.first_name]))
        found.append(
            Answer(
                grade=grade.id,
                comment=comment.id,
                student=f"{names} ({student.id})" if names else student.id,
                html=_answer(Path(folder) / f"{cell.notebook.name}.ipynb", cell.name),
                # Not ``grade.score``, which includes extra credit.
                mark=grade.auto_score if grade.manual_score is None else grade.manual_score,
                extra_credit=grade.extra_credit,
                text=comment.comment or "",
                is_graded=not grade.needs_manual_grade,
            )
        )
    return found


def students_without(cell: GradeCell) -> list[str]:
    """Students who were graded before the question was added, sorted."""
    return sorted(
        submission.student.id
        for submission in cell.notebook.submissions
        if cell.name not in {one.name for one in submission.grades}
        or cell.name not in {one.name for one in submission.comments}
    )


def page(
    gradebook: Gradebook, coursedir: CourseDirectory, lab: str, name: str, base_url: str = ""
) -> str:
    """``name``: of the question; "" means the first. Raises MissingEntry and SourceError."""
    questions = written_questions(gradebook, lab)
    name = name or next(iter(questions), "")
    if name not in questions:
        raise MissingEntry(f"{lab} has no written question {name}".rstrip())
    rubric = read_rubric(Path(coursedir.format_path(coursedir.source_directory, ".", lab)))
    return render(
        "formgrader/written.html",
        lab=lab,
        name=name,
        names=list(questions),
        max_points=questions[name].max_score,
        rubric=rubric.get(name, Question()),
        answers=answers(gradebook, coursedir, questions[name]),
        without=students_without(questions[name]),
        base_url=base_url,
        script=SCRIPT.read_text(encoding="utf-8"),
    )


def _answer(path: Path, name: str) -> str:
    try:
        notebook = nbformat.read(path, as_version=4)
    except (OSError, ValueError):
        return inert.text(f"{path} cannot be read: grade this submission again.")
    for cell in notebook.cells:
        if grade_id(cell) == name:
            return inert.markdown(cell.source, cell.get("attachments"))
    return inert.text("This answer is not in the notebook that was graded.")


@functools.cache
def handler() -> type[web.RequestHandler]:
    """Created when the server starts, because importing nbgrader's server code takes a while."""
    from nbgrader.server_extensions.formgrader.base import (
        BaseHandler,
        check_notebook_dir,
        check_xsrf,
    )

    class WrittenAnswers(BaseHandler):
        @web.authenticated
        @check_xsrf
        @check_notebook_dir
        def get(self, lab: str, question: str) -> None:
            api: Any = self.api
            with api.gradebook as gradebook:
                try:
                    self.write(page(gradebook, self.coursedir, lab, question, self.base_url))
                except MissingEntry as error:
                    raise web.HTTPError(404, reason="No such written question") from error
                except SourceError as error:
                    self.log.error("%s", error)
                    raise web.HTTPError(409, reason="rubric.toml is wrong: see the log") from error

    return WrittenAnswers
