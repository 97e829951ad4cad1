"""Reading a notebook that may be anything at all.

The file is taken as JSON and no more: neither its version nor its validity decides what a student
gets.  Of a cell only type, text, id, grade id and the pictures that the text shows are read.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from autograder.grading.submission import attached, repair
from autograder.grading.submission.files import Unreadable, read_plain_file

MAX_BYTES = 20_000_000
MAX_CELLS = 2_000


def read_content(path: str | os.PathLike[str]) -> bytes:
    """The bytes of what was handed in; raises Unreadable."""
    return read_plain_file(path, MAX_BYTES)


def read_notebook(content: bytes) -> tuple[NotebookNode, list[str]]:
    """The cells in ``content`` and a sentence for each thing mended; raises Unreadable.

    Also reads the JSON of older formats, JSON that a merge or a full disk has damaged, a script
    exported from a notebook, and a zip that holds one of these.
    """
    notes: list[str] = []
    try:
        if content.startswith(repair.ZIP):
            content, note = repair.unzip(content, MAX_BYTES)
            notes.append(note)
        text, heard = repair.decode(content)
        notes += heard
        cells_of = repair.cells_of_script if repair.is_script(text) else repair.cells_of_json
        raw, heard = cells_of(text)
        notes += heard
        if len(raw) > MAX_CELLS:
            notes.append(f"Of {len(raw):,} cells the first {MAX_CELLS:,} were read.")
        cells = [cell for cell in map(_cell, raw[:MAX_CELLS]) if cell is not None]
        if dropped := attached.limit(cells):
            most = attached.MAX_CHARS * 0.75 / 1_000_000  # in base64, 3 bytes are 4 characters
            why = f"as all together were larger than {most:g} MB"
            notes.append(f"Pictures left out: {dropped}, {why}.")
    except Unreadable:
        raise
    except Exception as error:  # deep nesting, odd shapes: there is no end of what JSON may hold
        raise Unreadable(f"it is not a Jupyter notebook ({type(error).__name__})") from error
    present = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    return nbformat.from_dict(present), notes


def _cell(raw: Any) -> dict[str, Any] | None:
    """What counts of a cell, in the present format; None for what is none."""
    if not isinstance(raw, dict) or not isinstance(raw.get("cell_type"), str):
        return None
    source = raw.get("source", raw.get("input", ""))  # nbformat 3 had "input"
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    if not isinstance(source, str):
        return None
    kind = raw["cell_type"]
    if kind == "heading":  # nbformat 3
        kind, source = "markdown", f"# {source}"
    cell: dict[str, Any] = {"cell_type": kind, "metadata": {}}
    cell["source"] = source.replace("\r\n", "\n").replace("\r", "\n")
    if isinstance(raw.get("id"), str):
        cell["id"] = raw["id"]
    if pictures := attached.pictures_in(raw.get("attachments"), cell["source"]):
        cell["attachments"] = pictures
    metadata = raw.get("metadata")
    nbgrader = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    if isinstance(nbgrader, dict) and isinstance(nbgrader.get("grade_id"), str):
        cell["metadata"] = {"nbgrader": {"grade_id": nbgrader["grade_id"]}}
    return cell


# ---- which file was meant -----------------------------------------------------------------------

KINDS = (".ipynb", ".zip", ".py")  # in the order in which they are taken
MAX_ENTRIES = 1000


def find_notebook(folder: Path, lab: str) -> tuple[Path | None, str]:
    """(the file to grade, a sentence for the student or "").

    That with the lab's own name, whatever it is.  Where there is none: of the plain files of the
    kinds that can be read the one whose name is most like it, notebooks before zips and scripts.
    No path: the sentence says what lies there instead.  No link is followed.
    """
    wanted = f"{lab}.ipynb"
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)[:MAX_ENTRIES]
    except OSError:
        return None, f"Nothing was handed in for {lab}."
    if any(entry.name == wanted for entry in entries):
        return folder / wanted, ""
    files = [
        entry.name
        for entry in entries
        if entry.is_file(follow_symlinks=False)
        and not entry.name.startswith(".")
        and _kind(entry.name) in KINDS
    ]
    if not files:
        shown = ", ".join(f"`{_shown(entry.name)}`" for entry in entries[:3]) or "nothing"
        return None, f"No notebook was handed in: there is {shown} where `{wanted}` belongs."
    best = min(files, key=lambda name: (KINDS.index(_kind(name)), _unlike(name, lab), name))
    others = " Of several files it is the one that fits best." if len(files) > 1 else ""
    return folder / best, f"`{_shown(best)}` was graded, as there was no `{wanted}`.{others}"


def _kind(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _unlike(name: str, lab: str) -> int:
    """How far a name is from the lab's: 0 for 03_Ring_All_Reduce (1).ipynb, -Copy1, _final."""
    name, lab = _letters(name.rpartition(".")[0]), _letters(lab)
    if lab in name:
        return 0
    return 1 if lab.lstrip("0123456789") in name else 2


def _letters(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def _shown(name: str) -> str:
    """A file's name is the student's text, too."""
    plain = "".join(c for c in name if c.isprintable() and c not in "`<>&")
    return plain[:80].encode("utf-8", "replace").decode("utf-8")
