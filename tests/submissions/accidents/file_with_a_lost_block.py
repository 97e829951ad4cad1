"""A block of the file was lost: one cell cannot be read."""

import json
from pathlib import Path

from tests.submissions.accidents.editing import Notebook, index, save

SAYS = "The file was damaged"
LOST = ("all_gather",)


def submit(notebook: Notebook, folder: Path) -> None:
    text = json.dumps(notebook, indent=1)
    at = text.index("def all_gather(")
    save(text[:at] + '"\x00\x00' + text[at + 40 :], folder)
