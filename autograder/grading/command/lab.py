"""Grading one lab: its tasks, the journal of its records, and the gradebook."""

from __future__ import annotations

from pathlib import Path

from nbgrader.coursedir import CourseDirectory

from autograder.grading.gradebook.database import prepare, require_same_gradebook
from autograder.grading.gradebook.writer import Writer
from autograder.grading.nbgrader_app import nbgrader_app
from autograder.grading.pool.journal import Journal
from autograder.grading.pool.settings import GradingSettings
from autograder.grading.pool.tasks import TaskMaker
from autograder.grading.record.record import Record
from autograder.grading.submission.folders import records_folder


class UsageError(Exception):
    """The command cannot run as given: why, and what to do."""


class LabGrading:
    """One lab with nbgrader's configuration of the current directory."""

    def __init__(self, lab: str) -> None:
        """Raises UsageError, CourseError or GradebookError if grading cannot start."""
        self.lab = lab
        self.app = nbgrader_app()
        self.course = CourseDirectory(parent=self.app, assignment_id=lab)
        _require_lab(self.course, lab)
        prepare(self.course.db_url)
        require_same_gradebook(self.course)
        settings = GradingSettings(parent=self.app)
        self.unsandboxed = settings.unsandboxed
        self.maker = TaskMaker(settings, lab)
        self.records = records_folder(self.course)
        self.journal = Journal(self.records, lab)
        self.writer = Writer(self.app, lab)


def save(journal: Journal, record: Record, before: Record | None) -> bool:
    """Save a record, unless the machine failed and ``before``, a final one, would be lost.

    Returns whether the same submission was graded before.
    """
    if record.is_final or before is None:
        journal.write(record)
    return before is not None and before.submission_hash == record.submission_hash


def _require_lab(course: CourseDirectory, lab: str) -> None:
    folder = Path(course.format_path(course.source_directory, ".", "."))
    labs = sorted(path.stem for path in folder.glob("*/*.ipynb") if path.parent.name == path.stem)
    if not labs:
        root = "the root of the repository, where nbgrader_config.py is"
        raise UsageError(f"{folder} contains no labs: run this in {root}")
    if lab not in labs:
        raise UsageError(f"there is no lab {lab!r}: choose from {', '.join(labs)}")
