"""Cells were moved: the last answer comes first, and checks are above their answers."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save

SAYS = "graded in the lab's own order"


def submit(notebook: Notebook, folder: Path) -> None:
    notebook["cells"].reverse()
    save(notebook, folder)
