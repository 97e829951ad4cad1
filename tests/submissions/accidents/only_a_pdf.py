"""A PDF was submitted instead of a notebook."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save

SAYS = "You submitted `ring.pdf`, which is no notebook: expected `03_ring_all_reduce.ipynb`"
LOST = True


def submit(notebook: Notebook, folder: Path) -> None:
    save(b"%PDF-1.7\n...", folder, "ring.pdf")
