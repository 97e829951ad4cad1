"""An answer and its check were merged into one cell, which has the check's metadata."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, cell, save, text_of

SAYS = "`check_chunk_bounds` had been changed"


def submit(notebook: Notebook, folder: Path) -> None:
    answer, check = cell(notebook, "chunk_bounds"), cell(notebook, "check_chunk_bounds")
    check["source"] = text_of(answer) + "\n\n" + text_of(check)
    notebook["cells"].remove(answer)
    save(notebook, folder)
