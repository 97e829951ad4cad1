"""The student renamed the file."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save

SAYS = "`homework of Ann.ipynb` was graded"


def submit(notebook: Notebook, folder: Path) -> None:
    save(notebook, folder, "homework of Ann.ipynb")
