"""The list of cells was submitted without the rest of the notebook's JSON."""

import json
from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save

SAYS = ""


def submit(notebook: Notebook, folder: Path) -> None:
    save(json.dumps(notebook["cells"]), folder)
