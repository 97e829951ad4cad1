"""Windows Notepad put a byte order mark before the first brace."""

import json
from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save

SAYS = ""


def submit(notebook: Notebook, folder: Path) -> None:
    save(b"\xef\xbb\xbf" + json.dumps(notebook).encode(), folder)
