"""The grader's record of a notebook, from which its pages are made."""

from __future__ import annotations

from typing import Any

from nbformat import NotebookNode
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Configurable

from autograder.build.cells import grade_id
from autograder.grading.pool.journal import Journal
from autograder.grading.record.record import BrokenRecord, Record
from autograder.grading.submission.folders import records_folder


def record_of(owner: Configurable, notebook: NotebookNode, lab: str, student: str) -> Record | None:
    """The record from which ``notebook``, in autograded/, was written.

    None if it was graded in another way, or has been regraded since.  ``owner`` has nbgrader's
    configuration.
    """
    try:
        folder = records_folder(CourseDirectory(parent=owner))
        record = Journal(folder, lab).read(student)
    except BrokenRecord:
        return None
    written = notebook.metadata.get("shardlab")
    key = written.get("key") if isinstance(written, dict) else None
    return record if record is not None and record.key == key else None


def check_output(record: Record | None, name: str | None) -> tuple[str, str]:
    """(a check's table as HTML, why it failed), "" if there is none.

    Read from the record, which student code cannot write; a notebook may contain a forgery.
    """
    if record is None or record.notebook is None or name not in record.verdicts:
        return "", ""
    cells = record.notebook["cells"]
    outputs: list[Any] = next((c["outputs"] for c in cells if grade_id(c) == name), [])
    tables = [out["data"]["text/html"] for out in outputs if "text/html" in out.get("data", {})]
    errors = [out["evalue"] for out in outputs if out["output_type"] == "error"]
    return "".join(tables[:1]), "".join(errors[:1])
