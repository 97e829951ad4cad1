"""Written by a future version of Jupyter."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save

SAYS = ""


def submit(notebook: Notebook, folder: Path) -> None:
    notebook["nbformat"], notebook["nbformat_minor"] = 5, 1
    notebook["new_key"] = {}
    save(notebook, folder)
