"""Where a page's facts come from: the grader's record of this very notebook, and the gradebook."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Configurable

from autograder.grading.pool.journal import Journal
from autograder.grading.record.record import BrokenRecord, Record


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


def told(record: Record, name: str) -> tuple[str, str]:
    """(the table of one check as HTML, or else why there is none): the grader's own words.

    From the record, where no student code ever wrote; the same may stand in a notebook.
    """
    cells = record.notebook["cells"] if record.notebook and name in record.verdicts else []
    outputs: list[Any] = next((c["outputs"] for c in cells if grade_id(c) == name), [])
    tables = [out["data"]["text/html"] for out in outputs if "text/html" in out.get("data", {})]
    words = [out["evalue"] for out in outputs if out["output_type"] == "error"]
    return "".join(tables[:1]), "".join(words[:1])


def grade_id(cell: Mapping[str, Any]) -> str:
    """Of a cell in a notebook of the grader's; "" where it has no part in grading."""
    return str(_plain(cell["metadata"].get("nbgrader")).get("grade_id", ""))


def _plain(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
