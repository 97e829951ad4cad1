"""Cells were dragged about: the last answer stands first, checks stand above answers."""

from pathlib import Path

from tests.submissions.accidents.by_hand import Notebook, save

SAYS = "graded in the lab's own order"


def hand_in(notebook: Notebook, folder: Path) -> None:
    notebook["cells"].reverse()
    save(notebook, folder)
