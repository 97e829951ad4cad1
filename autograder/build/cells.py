"""The cells of a lab: which are graded by a check, and which contain an answer.

Workers import this module, so neither it nor the package imports nbgrader, which takes two seconds.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nbformat import NotebookNode

END_LINKS = "links-at-the-end"  # the id of a notebook's last cell, with links to other notebooks


class BadCheck(ValueError):
    """A graded cell that does not contain exactly one ``check("exercise", subject)``."""


@dataclass(frozen=True)
class Check:
    exercise: str  # "ring_all_reduce.reduce_scatter"
    subject: str  # the expression passed, as written: "reduce_scatter"


def find_check(source: str) -> Check:
    """The only check call in a cell; raises BadCheck if there is none, or more than one.

    The exercise must be a string literal: the cell is parsed, not run, so that nothing a student
    does can change which exercise is graded.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise BadCheck(f"cannot be parsed: {error.msg}") from error
    calls = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="check") | ast.Attribute(attr="check"), args=given):
                calls.append(given)
    match calls:
        case [[ast.Constant(value=str(exercise)), subject]]:
            return Check(exercise, ast.unparse(subject))
        case [_]:
            raise BadCheck('must call check("exercise", subject) with the exercise in quotes')
    raise BadCheck(f'must contain one check("exercise", subject), but contains {len(calls)}')


def checks_of(template: NotebookNode) -> dict[str, Check]:
    """{grade id: its check} of every cell that is graded by a check."""
    return {
        cell.metadata.nbgrader.grade_id: find_check(cell.source)
        for cell in template.cells
        if is_check(cell)
    }


def is_check(cell: NotebookNode) -> bool:
    is_graded = cell.metadata.get("nbgrader", {}).get("grade", False)
    return is_graded and not is_answer(cell) and cell.cell_type == "code"


def is_answer(cell: Mapping[str, Any]) -> bool:
    return bool(cell["metadata"].get("nbgrader", {}).get("solution", False))


def grade_id(cell: Mapping[str, Any]) -> str | None:
    """None for a cell that grading ignores."""
    metadata = cell["metadata"]
    meta = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    found = meta.get("grade_id") if isinstance(meta, dict) else None
    return found if isinstance(found, str) else None
