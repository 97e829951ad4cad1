"""The cell of the written answer was deleted and retyped in a new one."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, bare, index, save

SAYS = "`from_8_to_64_ranks` was in another cell"


def submit(notebook: Notebook, folder: Path) -> None:
    at = index(notebook, "from_8_to_64_ranks")
    notebook["cells"][at] = {**bare(notebook["cells"][at]), "cell_type": "markdown"}
    save(notebook, folder)
