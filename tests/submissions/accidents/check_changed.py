"""Code was added to a check."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, cell, save, text_of

SAYS = "`check_chunk_bounds` had been changed: the lab's own text was used"


def submit(notebook: Notebook, folder: Path) -> None:
    check = cell(notebook, "check_chunk_bounds")
    check["source"] = "print(chunk_bounds(3, 2))\n" + text_of(check)
    save(notebook, folder)
