"""A lab's rubric: items with points for each written question, and reusable comments."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from autograder.build.text import SourceError

RUBRIC = "rubric.toml"


@dataclass(frozen=True)
class Item:
    """``points`` is negative for a mistake."""

    text: str
    points: float


@dataclass(frozen=True)
class Question:
    items: tuple[Item, ...] = ()
    comments: tuple[str, ...] = ()


def read_rubric(folder: Path) -> dict[str, Question]:
    """{grade id: question} from a lab's folder; empty without a rubric. Raises SourceError."""
    path = folder / RUBRIC
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from error
    return {name: _question(table, f"{path}, [{name}]") for name, table in tables.items()}


def require_rubric(folder: Path, notebook: NotebookNode) -> None:
    """Raise SourceError unless a rubric's questions are written questions of the lab and its items'
    points add up to at most those of the question."""
    worth = {
        cell.metadata.nbgrader.grade_id: float(cell.metadata.nbgrader.points)
        for cell in notebook.cells
        if cell.cell_type == "markdown" and cell.metadata.get("nbgrader", {}).get("grade")
    }
    for name, question in read_rubric(folder).items():
        where = f"{folder / RUBRIC}, [{name}]"
        if name not in worth:
            known = ", ".join(worth) or "none"
            raise SourceError(f"{where}: no written question has this name. The lab has: {known}")
        total = sum(item.points for item in question.items if item.points > 0)
        if total > worth[name] + 1e-9 and worth[name]:  # 0: the question was dropped
            raise SourceError(
                f"{where}: the items have {total:g} points, the question only {worth[name]:g}"
            )


def _question(table: Any, where: str) -> Question:
    if not isinstance(table, dict) or table.keys() - {"items", "comments"}:
        raise SourceError(f"{where}: expected only `items` and `comments`")
    comments, rows = table.get("comments", []), table.get("items", [])
    if not isinstance(comments, list) or not all(_is_line(one) for one in comments):
        raise SourceError(f"{where}: `comments` must be a list of lines of text")
    if not isinstance(rows, list):
        raise SourceError(f"{where}: `items` must be written as [[NAME.items]]")
    items = tuple(_item(row, f"{where}, item {at}") for at, row in enumerate(rows, 1))
    if len({item.text for item in items}) < len(items):
        raise SourceError(f"{where}: two items have the same text")
    return Question(items, tuple(comments))


def _item(row: Any, where: str) -> Item:
    if not isinstance(row, dict) or row.keys() != {"text", "points"} or not _is_line(row["text"]):
        raise SourceError(f"{where}: expected a line `text` and a number `points`")
    points = row["points"]
    if type(points) not in (int, float) or not math.isfinite(points):
        raise SourceError(f"{where}: `points` must be a number")
    return Item(row["text"], float(points))


def _is_line(text: Any) -> bool:
    return isinstance(text, str) and text.strip() == text != "" and "\n" not in text
