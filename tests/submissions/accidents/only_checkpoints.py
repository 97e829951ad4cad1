"""Only Jupyter's hidden checkpoint folder was submitted."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save

SAYS = "You submitted no notebook"
LOST = True


def submit(notebook: Notebook, folder: Path) -> None:
    (folder / ".ipynb_checkpoints").mkdir()
    save(notebook, folder / ".ipynb_checkpoints", "03_ring_all_reduce-checkpoint.ipynb")
