"""The file is empty."""

from pathlib import Path

from tests.submissions.accidents.by_hand import Notebook, save

SAYS = "it is empty"
LOST = True


def hand_in(notebook: Notebook, folder: Path) -> None:
    save(b"", folder)
