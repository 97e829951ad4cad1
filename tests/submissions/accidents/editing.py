"""Helpers for the accidents, one per file in this folder.

An accident's ``submit(notebook, folder)`` takes a solved lab 03_ring_all_reduce, damages it and saves
it to the submission folder.  ``SAYS`` is part of the message to the student, "" if nothing was
repaired; ``LOST`` names the answers that cannot be recovered (True: all of them).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LAB = "03_ring_all_reduce"
NAME = f"{LAB}.ipynb"
Notebook = dict[str, Any]


def save(content: Notebook | str | bytes, folder: Path, name: str = NAME) -> None:
    if isinstance(content, dict):
        content = json.dumps(content, indent=1)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def index(notebook: Notebook, cell_id: str) -> int:
    return [cell["id"] for cell in notebook["cells"]].index(cell_id)


def cell(notebook: Notebook, cell_id: str) -> dict[str, Any]:
    found: dict[str, Any] = notebook["cells"][index(notebook, cell_id)]
    return found


def text_of(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def copy_of(cell: dict[str, Any], text: str | None = None) -> dict[str, Any]:
    """A copy as Jupyter makes when copying or splitting cells: only the id differs."""
    copied: dict[str, Any] = json.loads(json.dumps(cell))
    copied["id"] = f"{len(text or '') % 9973:08x}"
    if text is not None:
        copied["source"] = text
    return copied


def bare(cell: dict[str, Any]) -> dict[str, Any]:
    """A new cell with the same text."""
    new = {"cell_type": cell["cell_type"], "metadata": {}, "source": text_of(cell)}
    return new if cell["cell_type"] == "markdown" else {**new, "outputs": []}
