"""What the cells of a released lab are: which are decided by a check, which hold an answer.

Workers import this, and no nbgrader: that takes two seconds.
"""

from __future__ import annotations

from nbformat import NotebookNode

from autograder.grading.submission.checks import Check, find_check


class CourseError(Exception):
    """The course itself is not in order; nothing to do with the submission at hand."""


def checks_of(template: NotebookNode) -> dict[str, Check]:
    """{grade id: what to decide} of every cell that is graded by a check."""
    return {
        cell.metadata.nbgrader.grade_id: find_check(cell.source)
        for cell in template.cells
        if is_check(cell)
    }


def is_check(cell: NotebookNode) -> bool:
    return _is(cell, "grade") and not is_answer(cell) and cell.cell_type == "code"


def is_answer(cell: NotebookNode) -> bool:
    return _is(cell, "solution")


def _is(cell: NotebookNode, what: str) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get(what, False))


def grade_id(cell: NotebookNode) -> str | None:
    """None for a cell that has no part in grading."""
    meta = cell.metadata.get("nbgrader") if isinstance(cell.metadata, dict) else None
    found = meta.get("grade_id") if isinstance(meta, dict) else None
    return found if isinstance(found, str) else None
