"""The file is empty."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save

SAYS = "it is empty"
LOST = True


def submit(notebook: Notebook, folder: Path) -> None:
    save(b"", folder)
