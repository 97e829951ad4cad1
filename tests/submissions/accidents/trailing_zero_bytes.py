"""A crash while saving left zero bytes at the end."""

import json
from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save

SAYS = ""


def submit(notebook: Notebook, folder: Path) -> None:
    save(json.dumps(notebook).encode() + bytes(5000), folder)
