"""The browser added a number to the second download."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save

SAYS = "`03_ring_all_reduce (1).ipynb` was graded"


def submit(notebook: Notebook, folder: Path) -> None:
    save(notebook, folder, "03_ring_all_reduce (1).ipynb")
