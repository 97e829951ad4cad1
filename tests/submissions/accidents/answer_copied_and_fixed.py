"""An answer was copied to try something else; the lower copy is correct."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, cell, copy_of, index, save, text_of

SAYS = "the copies were joined in order"


def submit(notebook: Notebook, folder: Path) -> None:
    right = cell(notebook, "chunk_bounds")
    first = copy_of(right, text_of(right).replace("extra)", "extra + 1)"))
    notebook["cells"].insert(index(notebook, "chunk_bounds"), first)
    save(notebook, folder)
