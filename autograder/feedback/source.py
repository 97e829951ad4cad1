"""Where a page's facts come from: the grader's record of this very notebook, and the gradebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Configurable

from autograder.grading.journal import Journal
from autograder.grading.record import BrokenRecord, Record


def record_of(owner: Configurable, notebook: NotebookNode, lab: str, student: str) -> Record | None:
    """The record that ``notebook``, of autograded/, was written from.

    None where it was graded by another way, or anew since.  ``owner`` carries nbgrader's
    configuration.
    """
    key = _plain(notebook.metadata.get("shardlab")).get("key")
    course = CourseDirectory(parent=owner)
    records = Path(course.root, course.autograded_directory).parent / "records"
    try:
        record = Journal(records, lab).read(student)
    except BrokenRecord:
        return None
    return record if record is not None and record.key == key else None


def _plain(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
