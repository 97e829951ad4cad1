"""Split in VS Code: the second half is a cell without metadata or a known id."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, bare, cell, index, save, text_of

SAYS = "`reduce_scatter` had been split: its parts were joined"


def submit(notebook: Notebook, folder: Path) -> None:
    whole = cell(notebook, "reduce_scatter")
    head, _, rest = text_of(whole).partition("    for step")
    half = {**bare(whole), "source": "    for step" + rest}
    notebook["cells"].insert(index(notebook, "reduce_scatter") + 1, half)
    whole["source"] = head
    save(notebook, folder)
