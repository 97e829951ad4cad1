"""The M key was pressed on an answer cell."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, cell, save

SAYS = "`all_gather` had another cell type"


def submit(notebook: Notebook, folder: Path) -> None:
    answer = cell(notebook, "all_gather")
    answer["cell_type"] = "markdown"
    del answer["outputs"], answer["execution_count"]
    save(notebook, folder)
