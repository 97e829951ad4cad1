"""The notebook was saved as HTML under its .ipynb name."""

from pathlib import Path

from tests.submissions.accidents.by_hand import Notebook, save

SAYS = "it is a web page, not a notebook"
LOST = True


def hand_in(notebook: Notebook, folder: Path) -> None:
    save("<!DOCTYPE html>\n<html><body>def chunk_bounds</body></html>", folder)
