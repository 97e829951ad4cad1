"""Invalid outputs that Jupyter never writes, and one of a megabyte."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, cell, save

SAYS = ""


def submit(notebook: Notebook, folder: Path) -> None:
    cell(notebook, "chunk_bounds")["outputs"] = [
        {"output_type": "execute_result", "data": {"text/plain": ["2.0"]}, "metadata": {}},
        {"output_type": "mystery", "data": 7},
        {"output_type": "stream", "name": "stdout", "text": "x" * 1_000_000},
        {},
    ]
    cell(notebook, "check_chunk_bounds")["outputs"] = [{"output_type": "error", "ename": "E"}]
    cell(notebook, "cell-001")["outputs"] = []
    save(notebook, folder)
