"""Ctrl-Shift-minus in JupyterLab: both halves have the answer's metadata."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, cell, copy_of, index, save, text_of

SAYS = "the copies were joined in order"


def submit(notebook: Notebook, folder: Path) -> None:
    whole = cell(notebook, "reduce_scatter")
    head, _, rest = text_of(whole).partition("    for step")
    half = copy_of(whole, "    for step" + rest)
    notebook["cells"].insert(index(notebook, "reduce_scatter") + 1, half)
    whole["source"] = head
    save(notebook, folder)
