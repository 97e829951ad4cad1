"""Two answer cells were merged into one, which has the first one's metadata."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, cell, save, text_of

SAYS = "`reduce_scatter` was in another cell"


def submit(notebook: Notebook, folder: Path) -> None:
    first, second = cell(notebook, "chunk_bounds"), cell(notebook, "reduce_scatter")
    first["source"] = text_of(first) + "\n\n" + text_of(second)
    notebook["cells"].remove(second)
    save(notebook, folder)
