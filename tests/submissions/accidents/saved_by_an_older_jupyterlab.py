"""nbformat 4.2 has no cell ids."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save

SAYS = ""


def submit(notebook: Notebook, folder: Path) -> None:
    for one in notebook["cells"]:
        del one["id"]
    notebook["nbformat_minor"] = 2
    save(notebook, folder)
