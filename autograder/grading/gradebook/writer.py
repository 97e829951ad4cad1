"""Writes records to nbgrader's gradebook with nbgrader's own converter: one process, one at a time.

nbgrader still handles late penalties, checksums, manual scores and comments.
"""

from __future__ import annotations

import logging
import os
from logging.handlers import BufferingHandler
from pathlib import Path

from nbgrader.api import Grade, Gradebook, MissingEntry
from nbgrader.apps import NbGrader
from nbgrader.converters import Autograde
from nbgrader.converters.base import NbGraderException
from nbgrader.coursedir import CourseDirectory
from sqlalchemy.exc import SQLAlchemyError
from traitlets import Any as AnyTrait

from autograder.grading.gradebook.database import by_cell, share_engines
from autograder.grading.gradebook.run_and_decide import SIDE_FILES, RunAndDecide, decided_notebook
from autograder.grading.record.record import Record
from autograder.grading.submission.files import Unreadable, read_regular_file
from autograder.grading.submission.folders import submission_folder
from autograder.grading.submission.timestamp import (
    TIMESTAMP,
    BadTimestamp,
    submission_time,
)


class NotWritten(Exception):
    """A submission's grade could not be written to the gradebook: why."""


class Writer:
    """Reads and writes the gradebook of one lab."""

    def __init__(self, app: NbGrader, lab: str) -> None:
        """``app`` carries the configuration; its log is redirected."""
        share_engines()
        self.lab = lab
        self._course = CourseDirectory(parent=app, assignment_id=lab)
        self._converter = _OneRecord(coursedir=self._course, parent=app, force=True)
        # nbgrader logs why it failed; its exception only says that it did.
        self._errors = BufferingHandler(capacity=1_000)
        self._errors.setLevel(logging.ERROR)
        self._converter.log.handlers = [self._errors]
        self._converter.log.propagate = False

    def scores(self) -> dict[str, dict[str, float | None]]:
        """{student: {grade id: automatic score}} of every student with a submission."""
        with self._gradebook() as gradebook:
            found = by_cell(gradebook, self.lab, (Grade.auto_score,))
        return {
            student: {cell: score for cell, (score,) in cells.items()}
            for student, cells in found.items()
        }

    def students(self) -> list[str]:
        """All students in the gradebook, with or without a submission."""
        with self._gradebook() as gradebook:
            return sorted(student.id for student in gradebook.students)

    def is_written(self, record: Record, scores: dict[str, dict[str, float | None]]) -> bool:
        """Whether this record is completely written. ``scores``: from ``self.scores()``.

        The notebook in autograded/ is written last, and contains the record's key.
        """
        student = scores.get(record.student, {})
        if any(student.get(cell) != points for cell, points in record.points.items()):
            return False
        written = self._course.autograded_directory
        autograded = Path(self._course.format_path(written, record.student, self.lab))
        try:
            end = (autograded / f"{self.lab}.ipynb").read_bytes().rstrip()[-2000:]
        except OSError:
            return False
        submitted = submission_folder(self._course, self.lab, record.student)
        same_time = _read(submitted / TIMESTAMP) == _read(autograded / TIMESTAMP)
        return end.endswith(b"}") and record.key.encode() in end and same_time

    def write(self, record: Record, same_submission: bool = False) -> None:
        """Raises NotWritten. Idempotent, also after a partial write.

        ``same_submission``: this submission was graded before, so a manual score in place of an
        automatic one does not need another look unless the automatic one has changed.
        `graded_answers.SaveGrades` decides about written answers.
        """
        assert record.notebook is not None
        self._errors.flush()
        self._converter.record = record
        try:
            # nbgrader's own reader fails with an AttributeError.
            submission_time(submission_folder(self._course, self.lab, record.student))
            before = self._manually_scored(record) if same_submission else {}
            self._converter.start()
            if before:
                self._keep_manual_scores(record, before)
        except BadTimestamp as error:
            raise NotWritten(str(error)) from error
        except (NbGraderException, SQLAlchemyError, OSError) as error:
            raise NotWritten(self._cause() or str(error).splitlines()[0]) from error

    def _manually_scored(self, record: Record) -> dict[str, float]:
        with self._gradebook() as gradebook:
            return {
                grade.name: grade.auto_score
                for grade in self._grades(gradebook, record)
                if None not in (grade.manual_score, grade.auto_score)
                and not grade.needs_manual_grade
            }

    def _keep_manual_scores(self, record: Record, before: dict[str, float]) -> None:
        with self._gradebook() as gradebook:
            for grade in self._grades(gradebook, record):
                if grade.name in before and before[grade.name] == grade.auto_score:
                    grade.needs_manual_grade = False
            gradebook.db.commit()

    def _grades(self, gradebook: Gradebook, record: Record) -> list[Grade]:
        try:
            return gradebook.find_submission_notebook(self.lab, self.lab, record.student).grades
        except MissingEntry:
            return []

    def _gradebook(self) -> Gradebook:
        return Gradebook(self._course.db_url, self._course.course_id)

    def _cause(self) -> str:
        """The line of a traceback that names the error, else the first line of the log."""
        lines = [record.getMessage().strip() for record in self._errors.buffer]
        traces = [text.splitlines()[-1] for text in lines if text.startswith("Traceback")]
        return "".join((traces or lines)[:1])[:500]


class _OneRecord(Autograde):
    """nbgrader's autograde for one submission that is already decided."""

    record = AnyTrait()

    def init_notebooks(self) -> None:
        """The lab's notebook of this student, even if no file of that name was submitted."""
        folder = self._format_source(self.record.lab, self.record.student)
        self.assignments = {folder: [os.path.join(folder, f"{self.record.lab}.ipynb")]}

    def convert_single_notebook(self, notebook_filename: str) -> None:
        """Only the steps that follow RunAndDecide: the record has the result of the others."""
        resources = self.init_single_notebook_resources(notebook_filename)
        self._sanitizing = False
        try:
            self._init_preprocessors()
        finally:
            self._sanitizing = True
        steps = self.exporter._preprocessors
        self.exporter._preprocessors = [s for s in steps if not isinstance(s, RunAndDecide)]
        notebook = decided_notebook(self.record)
        self.write_single_notebook(*self.exporter.from_notebook_node(notebook, resources))

    def init_assignment(self, assignment_id: str, student_id: str) -> None:
        """Copy only nbgrader's own files from the submission: others may be links."""
        ignore, self.coursedir.ignore = self.coursedir.ignore, ["*"]
        try:
            super().init_assignment(assignment_id, student_id)
        finally:
            self.coursedir.ignore = ignore
        submitted = Path(self._format_source(assignment_id, student_id))
        folder = Path(self._format_dest(assignment_id, student_id))
        for name in SIDE_FILES:
            if content := _read(submitted / name):
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)


def _read(path: Path) -> bytes:
    try:
        return read_regular_file(path, 1000).strip()
    except Unreadable:
        return b""
