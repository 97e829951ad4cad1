"""Paired by Jupytext with a script, with text in comments."""

from pathlib import Path

import jupytext
import nbformat

from tests.submissions.accidents.editing import Notebook, save

SAYS = "You submitted a Python script"
FORMAT = {"extension": ".py", "format_name": "light"}


def submit(notebook: Notebook, folder: Path) -> None:
    for cell in notebook["cells"]:
        cell["metadata"] = {}
    save(jupytext.writes(nbformat.from_dict(notebook), fmt=FORMAT), folder, "lab.py")
