"""Where a page's facts come from: the grader's record of this very notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbformat import NotebookNode
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Configurable

from autograder.grading.pool.journal import Journal
from autograder.grading.pool.tasks import grading_folder
from autograder.grading.record.record import BrokenRecord, Record


def record_of(owner: Configurable, notebook: NotebookNode, lab: str, student: str) -> Record | None:
    """The record that ``notebook``, of autograded/, was written from.

    None where it was graded by another way, or anew since.  ``owner`` carries nbgrader's
    configuration.
    """
    try:
        folder = grading_folder(CourseDirectory(parent=owner))
        record = Journal(folder / "records", lab).read(student)
    except BrokenRecord:
        return None
    key = _plain(notebook.metadata.get("shardlab")).get("key")
    return record if record is not None and record.key == key else None


def told(record: Record | None, name: str) -> tuple[str, str]:
    """(the table of one check as HTML, or else why there is none): the grader's own words.

    From the record, where no student code ever wrote; the same may stand in a notebook.
    """
    if record is None or record.notebook is None or name not in record.verdicts:
        return "", ""
    cells = record.notebook["cells"]
    outputs: list[Any] = next((c["outputs"] for c in cells if grade_id(c) == name), [])
    tables = [out["data"]["text/html"] for out in outputs if "text/html" in out.get("data", {})]
    words = [out["evalue"] for out in outputs if out["output_type"] == "error"]
    return "".join(tables[:1]), "".join(words[:1])


def grade_id(cell: Mapping[str, Any]) -> str:
    """Of a cell in a notebook of the grader's; "" where it has no part in grading."""
    return str(_plain(cell["metadata"].get("nbgrader")).get("grade_id", ""))


def _plain(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
