"""git left conflict markers in the JSON, around an execution count and the end of a cell."""

import json
from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save

SAYS = "merge conflict markers: the first side (your own branch) was graded"


def submit(notebook: Notebook, folder: Path) -> None:
    text = json.dumps(notebook, indent=1)
    line = '   "execution_count": null,\n'
    marked = f'<<<<<<< HEAD\n{line}=======\n   "execution_count": 7,\n>>>>>>> main\n'
    assert line in text
    save(text.replace(line, marked, 2), folder)
