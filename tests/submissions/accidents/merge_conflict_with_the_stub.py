"""Conflict markers surround an answer; the student's own side is the stub."""

import json
import re
from pathlib import Path

from tests.submissions.accidents.editing import Notebook, cell, save, text_of

SAYS = "the second side (the other branch) was graded"


def submit(notebook: Notebook, folder: Path) -> None:
    answer = cell(notebook, "chunk_bounds")
    solved, blank = json.dumps(text_of(answer)), json.dumps("    raise NotImplementedError()")
    answer["source"] = "HERE"
    sides = f'<<<<<<< HEAD\n"source": {blank}\n=======\n"source": {solved}\n>>>>>>> laptop\n'
    text = json.dumps(notebook, indent=1)
    save(re.sub(r'   "source": "HERE"\n', lambda _: sides, text), folder)
