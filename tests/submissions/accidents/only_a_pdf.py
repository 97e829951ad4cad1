"""A PDF was submitted instead of a notebook."""

from pathlib import Path

from tests.submissions.accidents.by_hand import Notebook, save

SAYS = "there is `ring.pdf` where `03_ring_all_reduce.ipynb` belongs"
LOST = True


def hand_in(notebook: Notebook, folder: Path) -> None:
    save(b"%PDF-1.7\n...", folder, "ring.pdf")
