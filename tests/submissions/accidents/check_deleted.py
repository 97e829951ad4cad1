"""A locked check was deleted: stock nbgrader would require manual grading forever."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, cell, save

SAYS = "`check_chunk_bounds` was missing: it was restored"


def submit(notebook: Notebook, folder: Path) -> None:
    notebook["cells"].remove(cell(notebook, "check_chunk_bounds"))
    save(notebook, folder)
