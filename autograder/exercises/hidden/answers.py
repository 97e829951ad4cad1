"""The code answers of a lab's solution, and the objects that answers define."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from types import CodeType

import jupytext
from nbformat import NotebookNode

SOLUTIONS = Path(__file__).parents[3] / "solutions"


@functools.cache
def code_cells(lab: str) -> tuple[NotebookNode, ...]:
    path = SOLUTIONS / lab / f"{lab}.nb.py"
    return tuple(cell for cell in jupytext.read(path).cells if cell.cell_type == "code")


def solution(lab: str) -> dict[str, str]:
    """{grade id: source} of the code answers in the lab's source, in order."""
    return {
        cell.metadata["nbgrader"]["grade_id"]: cell.source
        for cell in code_cells(lab)
        if cell.metadata.get("nbgrader", {}).get("solution")
    }


def subjects(lab: str, answers: dict[str, str]) -> dict[str, object]:
    """The objects that the answers define, in one namespace, as in a student's kernel.

    From the lab's other cells it runs only imports and definitions: no ranks, no figures.
    """
    namespace: dict[str, object] = {"__name__": "__main__"}
    for cell in code_cells(lab):
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
        if grade_id in answers:
            exec(compile(answers[grade_id], f"<{grade_id}>", "exec"), namespace)
        elif grade_id is None:
            exec(_definitions(cell.source), namespace)
    return namespace


def _definitions(source: str) -> CodeType:
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    tree = ast.parse("".join(line for line in source.splitlines(True) if line[:1] != "%"))
    tree.body = [node for node in tree.body if isinstance(node, kinds) or _is_constant(node)]
    return compile(tree, "<definitions>", "exec")


def _is_constant(node: ast.stmt) -> bool:
    """NAME = ..."""
    return isinstance(node, ast.Assign) and all(
        isinstance(target, ast.Name) and target.id.isupper() for target in node.targets
    )
