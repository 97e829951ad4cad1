"""`Save and export as executable script`."""

from pathlib import Path

import nbconvert
import nbformat

from tests.submissions.accidents.editing import Notebook, save

SAYS = "You submitted a Python script"


def submit(notebook: Notebook, folder: Path) -> None:
    text, _ = nbconvert.PythonExporter().from_notebook_node(nbformat.from_dict(notebook))
    save(text, folder, "03_ring_all_reduce.py")
