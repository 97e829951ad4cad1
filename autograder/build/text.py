"""One .nb.py (jupytext percent text) -> one notebook: without outputs, reproducible."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from autograder.build.cells import BadCheck, find_check

# All notebooks get this kernel, whatever metadata an editor wrote to their sources.
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
JUPYTEXT_METADATA = ("lines_to_next_cell", "title")  # jupytext's own bookkeeping, dropped
GRADE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")  # valid for nbgrader and as nbformat's cell id
NBGRADER_DEFAULTS = {"grade": False, "solution": False, "task": False, "schema_version": 3}


class SourceError(Exception):
    """A .nb.py cannot be built; the message names the file, the cell and the line."""


def notebook_from_text(path: Path) -> NotebookNode:
    """Build the notebook in ``path``; raises SourceError if it is invalid."""
    text = path.read_text(encoding="utf-8")
    try:
        notebook = jupytext.reads(text, fmt="py:percent")
    except Exception as error:
        raise SourceError(f"{path}: jupytext cannot read it: {error}") from error
    if not notebook.cells:
        raise SourceError(f"{path}: no cells; a cell starts with a line `# %%`")

    starts = _start_lines(text, len(notebook.cells))
    notebook.metadata = nbformat.from_dict(METADATA)
    grade_ids: set[str] = set()
    for position, (cell, line) in enumerate(zip(notebook.cells, starts, strict=True), 1):
        try:
            _complete(cell, position, grade_ids)
        except _CellError as error:
            place = f"{path}, cell {position} (line {line + error.line})"
            raise SourceError(f"{place}: {error}") from error
    nbformat.validate(notebook)
    return notebook


def notebook_bytes(notebook: NotebookNode) -> bytes:
    """The file's content, which is the same each time for the same notebook."""
    return (nbformat.writes(notebook).rstrip("\n") + "\n").encode()


class _CellError(Exception):
    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line  # relative to the cell's first line


def _complete(cell: NotebookNode, position: int, grade_ids: set[str]) -> None:
    """Check a cell and fill in what jupytext leaves out: its id and nbgrader metadata."""
    if "incorrectly_encoded_metadata" in cell.metadata:
        raise _CellError(f"cannot read `{cell.metadata['incorrectly_encoded_metadata']}`")
    for key in JUPYTEXT_METADATA:
        cell.metadata.pop(key, None)
    cell.id = f"cell-{position:03d}"
    if cell.cell_type == "code":
        _check_syntax(cell.source)
    if "nbgrader" in cell.metadata:
        cell.id = _complete_nbgrader(cell, grade_ids)
    _check_solution_regions(cell)


def _complete_nbgrader(cell: NotebookNode, grade_ids: set[str]) -> str:
    """Fill in and check the metadata of an answer, check or read-only cell; returns its id."""
    meta: dict[str, Any] = {**NBGRADER_DEFAULTS, **cell.metadata["nbgrader"]}
    meta.setdefault("locked", not meta["solution"])
    cell.metadata["nbgrader"] = nbformat.from_dict(dict(sorted(meta.items())))

    grade_id = meta.get("grade_id", "")
    if not GRADE_ID.fullmatch(grade_id):
        raise _CellError(f"grade_id {grade_id!r} must be 1 to 64 letters, digits, `_` or `-`")
    if grade_id in grade_ids:
        raise _CellError(f"grade_id {grade_id!r} is already used by an earlier cell")
    grade_ids.add(grade_id)

    if meta["grade"] and meta["solution"] and not 0 <= meta.get("points", -1) < math.inf:
        raise _CellError(f"{grade_id!r} is graded but has no points (0: it was dropped)")
    if meta["grade"] and not meta["solution"]:
        if not meta["locked"]:
            raise _CellError(f"{grade_id!r} is a check cell: it must be locked")
        if "points" in meta:
            raise _CellError(f"{grade_id!r} must not set points: they come from its exercise")
        try:
            find_check(cell.source)
        except BadCheck as error:
            raise _CellError(f"{grade_id!r} {error}") from error
    return str(grade_id)


def _check_syntax(source: str) -> None:
    python = TransformerManager().transform_cell(source)  # magics become plain calls
    try:
        compile(python, "cell", "exec", flags=0x2000)  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    except SyntaxError as error:
        raise _CellError(f"{type(error).__name__}: {error.msg}", error.lineno or 0) from error


def _check_solution_regions(cell: NotebookNode) -> None:
    """nbgrader rejects these, too, but does not name the cell."""
    inside = False
    for number, line in enumerate(cell.source.splitlines(), 1):
        begins, ends = "BEGIN SOLUTION" in line, "END SOLUTION" in line
        if not (begins or ends):
            continue
        if not cell.metadata.get("nbgrader", {}).get("solution"):
            why = "a solution in a cell without `solution: true` would be released"
            raise _CellError(why, number)
        if begins == inside:
            raise _CellError("BEGIN SOLUTION and END SOLUTION do not pair up", number)
        inside = begins
    if inside:
        raise _CellError("BEGIN SOLUTION without END SOLUTION")


def _start_lines(text: str, cells: int) -> list[int]:
    """The line where each cell starts; text above the first marker is a cell without a marker."""
    markers = [i for i, line in enumerate(text.splitlines(), 1) if line.startswith("# %%")]
    return ([1] * cells + markers)[-cells:]
