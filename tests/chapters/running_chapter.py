"""Runs a chapter in its own kernel, and finds the text and pictures that its cells produced."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from nbclient import NotebookClient
from nbformat import NotebookNode

from autograder.build.text import notebook_from_text
from tests import kernels

ROOT = Path(__file__).parents[2]
CHAPTERS = ROOT / "course/chapters"
CELL_LIMIT_S = 120
RAN = re.compile(r"ran for [\d.]+ s")  # what is left of a long run's progress display
PREDICTION = re.compile(r"^(predicted_\w+) = predict\(.+\)\n\1\Z", re.MULTILINE)


def read(name: str) -> NotebookNode:
    return notebook_from_text(CHAPTERS / f"{name}.nb.py")


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@dataclass
class Chapter:
    """A chapter that ran from top to bottom without an error."""

    name: str
    notebook: NotebookNode
    seconds: float = 0.0

    def text_of(self, code: str) -> str:
        """The text output of the only cell with ``code``: what it printed, and its value."""
        *before, last = self._texts(self._cell(code)) or [""]
        return "".join(text if text.endswith("\n") else f"{text}\n" for text in before) + last

    def table_of(self, code: str) -> list[dict[str, str]]:
        """The rows {heading: cell} of the only table under the only cell with ``code``."""
        shown = [output.get("data", {}) for output in self._cell(code).outputs]
        tables = [data for data in shown if data.get("text/html", "").startswith("<table>")]
        assert len(tables) == 1, f"{len(tables)} tables under: {code}"
        lines = tables[0]["text/plain"].splitlines()["<caption" in tables[0]["text/html"] :]
        headings, *rows = (re.split(" {2,}", line.strip()) for line in lines)
        return [dict(zip(headings, row, strict=True)) for row in rows]

    def svg_of(self, code: str) -> str:
        """The SVG output of the only cell with ``code``."""
        pictures = [
            output.data["image/svg+xml"]
            for output in self._cell(code).outputs
            if "image/svg+xml" in output.get("data", {})
        ]
        assert len(pictures) == 1, f"{len(pictures)} pictures under: {code}"
        return pictures[0]

    def _cell(self, code: str) -> NotebookNode:
        found = [cell for cell in code_cells(self.notebook) if code in cell.source]
        assert len(found) == 1, f"{len(found)} cells contain: {code}"
        return found[0]

    @staticmethod
    def _texts(cell: NotebookNode) -> list[str]:
        texts = []
        for kind, outputs in groupby(cell.outputs, key=lambda output: output.output_type):
            if kind == "stream":  # one print may arrive in parts
                texts.append("".join(output.text for output in outputs))
            else:
                texts += [output.data.get("text/plain", "") for output in outputs]
        return [text for text in texts if not RAN.fullmatch(text)]


def run(
    name: str,
    folder: Path,
    *,
    predictions: Mapping[str, str] | None = None,
    until: str = "",
) -> Chapter:
    """Run a chapter in ``folder``; raises if a cell raises.

    predictions: {words of a question: the guess, as Python code}.
    until: stop before the first cell that contains this text.
    """
    notebook = read(name)
    if until:
        sources = [cell.source for cell in notebook.cells]
        end = next(i for i, source in enumerate(sources) if until in source)
        notebook.cells = notebook.cells[:end]
    for words, guess in (predictions or {}).items():
        questions = [cell for cell in code_cells(notebook) if PREDICTION.search(cell.source)]
        (cell,) = (cell for cell in questions if words in cell.source)
        *ask, shown = cell.source.splitlines()
        cell.source = "\n".join([*ask, f"{shown}.value = {guess}", shown])
    client = NotebookClient(
        notebook,
        timeout=CELL_LIMIT_S,
        kernel_name="python3",
        config=kernels.config(folder),
        resources={"metadata": {"path": str(folder)}},
    )
    # Send a cell id, as JupyterLab does: then widgets are live, and the notebook stores the state
    # that JupyterLab needs to show them again.
    client.create_kernel_manager()
    client.km.session.metadata = {"cellId": "chapter"}
    started = time.monotonic()
    client.execute()
    return Chapter(name, notebook, time.monotonic() - started)
