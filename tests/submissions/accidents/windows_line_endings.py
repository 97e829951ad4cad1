"""Windows line endings in the file and in the cells."""

import json
from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save, text_of

SAYS = ""


def submit(notebook: Notebook, folder: Path) -> None:
    for one in notebook["cells"]:
        one["source"] = text_of(one).replace("\n", "\r\n")
    save(json.dumps(notebook, indent=1).replace("\n", "\r\n"), folder)
