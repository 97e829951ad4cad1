"""Copied cell by cell into a new notebook: only the text is left."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, bare, save

SAYS = "`chunk_bounds` was in another cell"


def submit(notebook: Notebook, folder: Path) -> None:
    notebook["cells"] = [bare(one) for one in notebook["cells"]]
    save(notebook, folder)
