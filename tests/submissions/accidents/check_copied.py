"""A locked check was copied: stock nbgrader stops grading the whole class."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, cell, copy_of, save

SAYS = "`check_chunk_bounds` appeared 2 times: it was graded once"


def submit(notebook: Notebook, folder: Path) -> None:
    notebook["cells"].append(copy_of(cell(notebook, "check_chunk_bounds")))
    save(notebook, folder)
