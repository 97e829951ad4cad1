"""The stub is unchanged; the answer is in a new cell at the end."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, bare, cell, save, text_of

SAYS = "`bytes_per_rank` was in another cell"


def submit(notebook: Notebook, folder: Path) -> None:
    answer = cell(notebook, "bytes_per_rank")
    notebook["cells"].append(bare(answer))
    answer["source"] = text_of(answer).split("    ###")[0] + "    raise NotImplementedError()"
    save(notebook, folder)
