"""The R key was pressed on an answer cell, in an editor that drops metadata."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, bare, index, save

SAYS = "`all_gather` was in another cell"


def submit(notebook: Notebook, folder: Path) -> None:
    at = index(notebook, "all_gather")
    notebook["cells"][at] = {**bare(notebook["cells"][at]), "cell_type": "raw"}
    save(notebook, folder)
