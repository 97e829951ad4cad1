"""The student renamed the file."""

from pathlib import Path

from tests.submissions.accidents.by_hand import Notebook, save

SAYS = "`homework of Ann.ipynb` was graded"


def hand_in(notebook: Notebook, folder: Path) -> None:
    save(notebook, folder, "homework of Ann.ipynb")
