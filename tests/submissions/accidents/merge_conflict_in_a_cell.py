"""Conflict markers are inside an answer."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, cell, save, text_of

SAYS = "`chunk_bounds` contained merge conflict markers"


def submit(notebook: Notebook, folder: Path) -> None:
    answer = cell(notebook, "chunk_bounds")
    head, line, rest = text_of(answer).partition("    small, extra = divmod(length, world_size)\n")
    ours, theirs = line, "    small, extra = length // world_size, length % world_size\n"
    answer["source"] = f"{head}<<<<<<< HEAD\n{ours}=======\n{theirs}>>>>>>> theirs\n{rest}"
    save(notebook, folder)
