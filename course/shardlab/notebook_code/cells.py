"""A notebook's statements in order, and its calls of `launch`."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHAPTERS = Path(__file__).parents[2] / "chapters"
_MAGIC = re.compile(r"^\s*[%!]")


@dataclass(frozen=True)
class Statement:
    """A top-level statement of a code cell. ``cell`` counts the code cells from 1."""

    node: ast.stmt
    text: str
    cell: int


def chapters() -> list[str]:
    """Names of the chapters, such as ``03_ring_all_reduce``."""
    return sorted(path.stem for path in CHAPTERS.glob("[0-9][0-9]_*.ipynb"))


def statements(notebook: Path) -> list[Statement]:
    """Raises SyntaxError if a cell is not Python. Magics are left out."""
    found = []
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    for number, source in enumerate(sources, start=1):
        kept = "\n".join("" if _MAGIC.match(line) else line for line in source.splitlines())
        for node in ast.parse(kept).body:
            found.append(Statement(node, _text(kept, node), number))
    return found


def _text(source: str, node: ast.stmt) -> str:
    """The statement as it is written, with its decorators and comments in it."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(each.lineno for each in decorators)])
    if node.col_offset == 0 and not _shares_lines(source, node):
        return "\n".join(source.splitlines()[first - 1 : node.end_lineno])
    return ast.unparse(node)  # one of several statements on a line


def _shares_lines(source: str, node: ast.stmt) -> bool:
    after = source.splitlines()[(node.end_lineno or 0) - 1].encode()[node.end_col_offset or 0 :]
    return after.strip().startswith(b";")


def launches(node: ast.AST) -> Iterator[ast.Call]:
    """Calls of ``launch`` in the order in which they are written."""
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "launch"]
    yield from sorted(named, key=lambda call: (call.lineno, call.col_offset))
