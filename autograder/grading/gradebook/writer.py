"""Records into nbgrader's gradebook, by nbgrader's own converter: one process, one after another.

Late penalties, checksums, manual scores and comments stay nbgrader's business.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import nbformat
from nbgrader.api import (
    BaseCell,
    Grade,
    Gradebook,
    MissingEntry,
    SubmittedAssignment,
    SubmittedNotebook,
)
from nbgrader.apps import NbGrader
from nbgrader.converters import Autograde
from nbgrader.converters.base import NbGraderException
from nbgrader.coursedir import CourseDirectory
from sqlalchemy.exc import SQLAlchemyError
from traitlets import Any as AnyTrait

from autograder.grading.gradebook.database import share_engines
from autograder.grading.gradebook.run_and_decide import RECORD, SIDE_FILES, TIMESTAMP
from autograder.grading.pool.tasks import submission_folder
from autograder.grading.record.record import Record
from autograder.grading.submission.files import Unreadable, read_plain_file


class NotWritten(Exception):
    """One submission's grade did not get into the gradebook: why, as nbgrader said it."""


class Writer:
    """The gradebook of one lab: what is in it, and the way in."""

    def __init__(self, app: NbGrader, lab: str) -> None:
        """``app`` carries the configuration; its log is taken over."""
        share_engines()
        self.lab = lab
        self._course = CourseDirectory(parent=app, assignment_id=lab)
        self._converter = _OneRecord(coursedir=self._course, parent=app, force=True)
        self._said = _Errors()
        self._converter.log.handlers = [self._said]
        self._converter.log.propagate = False

    def scores(self) -> dict[str, dict[str, float | None]]:
        """{student: {grade id: automatic score}} of every student with a submission."""
        found: dict[str, dict[str, float | None]] = defaultdict(dict)
        with Gradebook(self._course.db_url, self._course.course_id) as gradebook:
            try:
                lab_id = gradebook.find_assignment(self.lab).id
            except MissingEntry:
                return {}
            rows = (
                gradebook.db.query(SubmittedAssignment.student_id, BaseCell.name, Grade.auto_score)
                .join(SubmittedNotebook, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
                .join(Grade, Grade.notebook_id == SubmittedNotebook.id)
                .join(BaseCell, BaseCell.id == Grade.cell_id)
                .filter(SubmittedAssignment.assignment_id == lab_id)
            )
            for student, cell, score in rows:
                found[student][cell] = score
        return dict(found)

    def students(self) -> list[str]:
        """Of the gradebook, whether they handed in or not."""
        with Gradebook(self._course.db_url, self._course.course_id) as gradebook:
            return sorted(student.id for student in gradebook.students)

    def is_written(self, record: Record, scores: dict[str, dict[str, float | None]]) -> bool:
        """Whether nothing is left to do for this record. ``scores``: as by the method.

        The notebook in autograded/ is written last, and carries the record's key.
        """
        student = scores.get(record.student, {})
        if any(student.get(cell) != points for cell, points in record.points.items()):
            return False
        written = self._course.autograded_directory
        autograded = Path(self._course.format_path(written, record.student, self.lab))
        try:
            with (autograded / f"{self.lab}.ipynb").open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 2000))
                end = file.read().rstrip()
        except OSError:
            return False
        whole = end.endswith(b"}") and record.key.encode() in end
        return whole and self._timestamp(record) == _read(autograded / TIMESTAMP)

    def _timestamp(self, record: Record) -> bytes:
        return _read(submission_folder(self._course, self.lab, record.student) / TIMESTAMP)

    def write(self, record: Record, same_submission: bool = False) -> None:
        """Raises NotWritten. Doing it twice, or again after a half of it, ends the same.

        ``same_submission``: it was graded before, so what a person has scored by hand need not be
        looked at again where the automatic score has not changed.
        """
        assert record.notebook is not None
        self._said.lines.clear()
        self._converter.record = record
        try:
            before = self._scored_by_hand(record) if same_submission else {}
            self._converter.start()
            self._confirm(record, before)
        except (NbGraderException, SQLAlchemyError, OSError) as error:
            raise NotWritten(self._said.last() or str(error).splitlines()[0]) from error

    def _scored_by_hand(self, record: Record) -> dict[str, float | None]:
        with Gradebook(self._course.db_url, self._course.course_id) as gradebook:
            return {
                grade.name: grade.auto_score
                for grade in self._grades(gradebook, record)
                if grade.manual_score is not None and not grade.needs_manual_grade
            }

    def _confirm(self, record: Record, before: dict[str, float | None]) -> None:
        if not before:
            return
        with Gradebook(self._course.db_url, self._course.course_id) as gradebook:
            for grade in self._grades(gradebook, record):
                if grade.name in before and before[grade.name] == grade.auto_score:
                    grade.needs_manual_grade = False
            gradebook.db.commit()

    def _grades(self, gradebook: Gradebook, record: Record) -> list[Grade]:
        try:
            return gradebook.find_submission_notebook(self.lab, self.lab, record.student).grades
        except MissingEntry:
            return []


class _OneRecord(Autograde):
    """nbgrader's autograde of one submission that is decided already."""

    record = AnyTrait()

    def init_notebooks(self) -> None:
        """The lab's notebook of this student, whether a file of that name was handed in or not."""
        folder = self._format_source(self.record.lab, self.record.student)
        self.assignments = {folder: [os.path.join(folder, f"{self.record.lab}.ipynb")]}

    def init_single_notebook_resources(self, notebook_filename: str) -> dict[str, Any]:
        resources = super().init_single_notebook_resources(notebook_filename)
        return {**resources, RECORD: self.record}

    def convert_single_notebook(self, notebook_filename: str) -> None:
        """The second of nbgrader's two passes: what the first makes, the record holds already."""
        resources = self.init_single_notebook_resources(notebook_filename)
        self._sanitizing = False
        try:
            self._init_preprocessors()
        finally:
            self._sanitizing = True
        notebook = nbformat.from_dict(self.record.notebook)
        self.write_single_notebook(*self.exporter.from_notebook_node(notebook, resources))

    def init_assignment(self, assignment_id: str, student_id: str) -> None:
        """Copies nothing of what was handed in but nbgrader's own: the rest may be links."""
        ignore, self.coursedir.ignore = self.coursedir.ignore, ["*"]
        try:
            super().init_assignment(assignment_id, student_id)
        finally:
            self.coursedir.ignore = ignore
        handed_in = Path(self._format_source(assignment_id, student_id))
        folder = Path(self._format_dest(assignment_id, student_id))
        for name in SIDE_FILES:
            if content := _read(handed_in / name):
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)


class _Errors(logging.Handler):
    """What nbgrader logs where it fails: its exception says no more than that it did."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def last(self) -> str:
        """The line of a traceback that names the error, else the first line of all."""
        traces = [text.strip() for text in self.lines if text.startswith("Traceback")]
        text = traces[0].splitlines()[-1] if traces else "".join(self.lines[:1])
        return text[:500]


def _read(path: Path) -> bytes:
    try:
        return read_plain_file(path, 1000).strip()
    except Unreadable:
        return b""
