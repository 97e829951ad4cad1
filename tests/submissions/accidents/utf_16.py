"""PowerShell's `>` writes UTF-16."""

import json
from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save

SAYS = "The file was in UTF-16"


def submit(notebook: Notebook, folder: Path) -> None:
    save(json.dumps(notebook, ensure_ascii=False).encode("utf-16"), folder)
