"""An answer cell was deleted by mistake and retyped in a new one."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, bare, index, save

SAYS = "`chunk_bounds` was in another cell"


def submit(notebook: Notebook, folder: Path) -> None:
    at = index(notebook, "chunk_bounds")
    notebook["cells"][at] = bare(notebook["cells"][at])
    save(notebook, folder)
