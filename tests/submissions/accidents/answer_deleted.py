"""An answer cell was deleted."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, cell, save

SAYS = "`chunk_bounds` was missing: it counts as not answered"
LOST = ("chunk_bounds",)


def submit(notebook: Notebook, folder: Path) -> None:
    notebook["cells"].remove(cell(notebook, "chunk_bounds"))
    save(notebook, folder)
