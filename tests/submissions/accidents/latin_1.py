"""An editor saved it in Latin-1: umlauts in a comment are not valid UTF-8."""

import json
from pathlib import Path

from tests.submissions.accidents.editing import Notebook, cell, save, text_of

SAYS = "bytes that are not text"


def submit(notebook: Notebook, folder: Path) -> None:
    answer = cell(notebook, "chunk_bounds")
    answer["source"] = text_of(answer) + "\n# größer"
    text = json.dumps(notebook, ensure_ascii=False).replace("→", ">")
    save(text.encode("latin-1", "replace"), folder)
