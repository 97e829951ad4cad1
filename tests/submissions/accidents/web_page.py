"""The notebook was saved as HTML under its .ipynb name."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save

SAYS = "it is a web page, not a notebook"
LOST = True


def submit(notebook: Notebook, folder: Path) -> None:
    save("<!DOCTYPE html>\n<html><body>def chunk_bounds</body></html>", folder)
