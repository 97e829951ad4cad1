"""Edited by hand: commas before closing brackets."""

import json
import re
from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save

SAYS = "trailing commas were removed"


def submit(notebook: Notebook, folder: Path) -> None:
    text = json.dumps(notebook, indent=1)
    save(re.sub(r"\n( *)\]", r",\n\1]", text).replace("[],", "[],"), folder)
