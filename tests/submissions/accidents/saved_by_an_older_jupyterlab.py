"""nbformat 4.2 has no cell ids."""

from pathlib import Path

from tests.submissions.accidents.by_hand import Notebook, save

SAYS = ""


def hand_in(notebook: Notebook, folder: Path) -> None:
    for one in notebook["cells"]:
        del one["id"]
    notebook["nbformat_minor"] = 2
    save(notebook, folder)
