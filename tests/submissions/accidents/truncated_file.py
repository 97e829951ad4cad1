"""The disk was full or the upload was interrupted: the file is truncated."""

import json
from pathlib import Path

from tests.submissions.accidents.editing import Notebook, index, save

SAYS = "The file was damaged"
LOST = ("ring_all_reduce", "bytes_per_rank", "hierarchical_all_reduce", "from_8_to_64_ranks")


def submit(notebook: Notebook, folder: Path) -> None:
    text = json.dumps(notebook, indent=1)
    save(text[: text.index("def ring_all_reduce(") + 20], folder)
