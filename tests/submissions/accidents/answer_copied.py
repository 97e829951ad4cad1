"""An answer cell was copied in an older Jupyter, including its metadata."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, cell, copy_of, save

SAYS = "`chunk_bounds` appeared 2 times: one was kept"


def submit(notebook: Notebook, folder: Path) -> None:
    notebook["cells"].append(copy_of(cell(notebook, "chunk_bounds")))
    save(notebook, folder)
