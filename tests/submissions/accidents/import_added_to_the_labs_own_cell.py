"""The student's import is in the lab's own cell of imports."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, cell, save, text_of

SAYS = ""


def submit(notebook: Notebook, folder: Path) -> None:
    cell(notebook, "cell-002")["source"] = text_of(cell(notebook, "cell-002")) + "\nimport math"
    answer = cell(notebook, "chunk_bounds")
    answer["source"] = text_of(answer).replace("small, extra =", "assert math.pi > 3\n    small, extra =")
    save(notebook, folder)
