"""A tool removed all metadata, including the cells' `metadata` keys."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save

SAYS = ""


def submit(notebook: Notebook, folder: Path) -> None:
    for one in notebook["cells"]:
        del one["metadata"]
    del notebook["metadata"]
    save(notebook, folder)
