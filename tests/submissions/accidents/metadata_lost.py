"""Some tool removed all metadata, including the cells' `metadata` keys."""

from pathlib import Path

from tests.submissions.accidents.by_hand import Notebook, save

SAYS = ""


def hand_in(notebook: Notebook, folder: Path) -> None:
    for one in notebook["cells"]:
        del one["metadata"]
    del notebook["metadata"]
    save(notebook, folder)
