"""Replaces nbgrader's Execute: writes a submission's record where nbgrader reads its grades."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor

from autograder.grading.course_error import CourseError
from autograder.grading.pool.journal import Journal
from autograder.grading.pool.local import LocalPool
from autograder.grading.pool.settings import GradingSettings
from autograder.grading.pool.tasks import TaskMaker
from autograder.grading.record.record import BrokenRecord, Record
from autograder.grading.submission.folders import SECRET, records_folder
from autograder.grading.submission.names import why_unusable
from autograder.grading.submission.timestamp import TIMESTAMP

# The exchange needs the secret to release feedback to its student only.
SIDE_FILES = (TIMESTAMP, SECRET)


def decided_notebook(record: Record) -> NotebookNode:
    """What is written to autograded/, where nbgrader reads the points."""
    notebook = nbformat.from_dict(record.notebook)
    # Identifies this grading and shows that it was written; feedback does not show it.
    notebook.metadata["shardlab"] = {"key": record.key}
    return notebook


class NotGraded(Exception):
    """There is no grade (not even 0): why, and what to do unless the machine failed."""


class RunAndDecide(GradingSettings, NbGraderPreprocessor):
    """First in nbgrader's ``autograde_preprocessors``.

    Uses the journal's record of this submission. If there is none, grades it now in a worker
    process, as `python -m autograder grade` does.
    """

    def preprocess(
        self, nb: NotebookNode, resources: dict[str, Any]
    ) -> tuple[NotebookNode, dict[str, Any]]:
        record = self._record(resources["nbgrader"])
        self._drop_other_files(record)
        return decided_notebook(record), resources

    def _record(self, names: dict[str, str]) -> Record:
        """Raises NotGraded."""
        if names["notebook"] != names["assignment"]:
            raise CourseError(f"a lab has one notebook, {names['assignment']}.ipynb")
        if why := why_unusable(names["student"]):
            raise NotGraded(f"the folder name {names['student']!r} {why}: rename the folder")
        maker = TaskMaker(self, names["assignment"])
        task = maker.task(names["student"])
        journal = Journal(records_folder(maker.course), task.lab)
        try:
            record = journal.read(task.student)
        except BrokenRecord as error:
            self.log.warning(
                "the record of %s is unreadable, grading again: %s", task.student, error
            )
            record = None
        if record is None or record.key != task.key or not record.is_final:
            (record,) = _one_worker(self.unsandboxed).grade_all([task])
            if not record.is_final:
                raise NotGraded(record.reason)
            journal.write(record)
        self.log.info("%s: %s. %s", record.student, record.state, record.reason)
        return record

    def _drop_other_files(self, record: Record) -> None:
        """nbgrader has copied everything submitted, the targets of links included, and feedback
        would release it."""
        course = CourseDirectory(parent=self)
        folder = course.format_path(course.autograded_directory, record.student, record.lab)
        for entry in os.scandir(folder) if os.path.isdir(folder) else ():
            if entry.name in (f"{record.lab}.ipynb", *SIDE_FILES):
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


@functools.cache
def _one_worker(unsandboxed: bool) -> LocalPool:
    """Kept until this process ends: nbgrader passes one submission at a time."""
    pool = LocalPool(1, unsandboxed)
    atexit.register(pool.close)
    return pool
