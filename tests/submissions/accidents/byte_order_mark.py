"""Windows Notepad put a byte order mark before the first brace."""

import json
from pathlib import Path

from tests.submissions.accidents.by_hand import Notebook, save

SAYS = ""


def hand_in(notebook: Notebook, folder: Path) -> None:
    save(b"\xef\xbb\xbf" + json.dumps(notebook).encode(), folder)
