"""Reads a submitted notebook, which may contain anything.

The file is treated as plain JSON: neither its version nor its validity affects the grade.  Of a
cell only its type, text, id, grade id, outputs and the pictures that the text shows are read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from autograder.grading.notebook.outputs import stored_outputs
from autograder.grading.submission import attachments, repair, script
from autograder.grading.submission.files import Unreadable, read_regular_file
from autograder.grading.submission.kinds import KINDS, is_noise, kind_of
from autograder.grading.submission.lab_cells import LabCells

MAX_BYTES = 20_000_000
MAX_CELLS = 2_000
MAX_OUTPUT_BYTES = 1_000_000  # of one cell
# Key of a notebook's metadata: a hash of the file, if it may contain text that was not recognized.
INCOMPLETE = "shardlab_incomplete"


def read_content(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a submission; raises Unreadable."""
    return read_regular_file(path, MAX_BYTES)


def read_notebook(content: bytes, lab: LabCells | None = None) -> tuple[NotebookNode, list[str]]:
    """The cells in ``content`` and a sentence for each repair; raises Unreadable.

    Also reads the JSON of older formats, JSON that a merge or a full disk has damaged, a script
    exported from a notebook, and a zip that contains one of these. ``lab``: chooses the notebook of
    a zip that contains several.
    """
    if not content.startswith(repair.ZIP):
        return _read(content)
    inside = repair.unzip(content, MAX_BYTES)
    if len(inside) == 1:
        notebook, notes = _read(*inside.values())
        return notebook, ["You submitted a zip: the notebook in it was graded.", *notes]
    read = {}
    for name, each in inside.items():
        with suppress(Unreadable):
            read[name] = _read(each)
    best = _best({name: notebook.cells for name, (notebook, _) in read.items()}, lab)
    if not best:
        raise Unreadable(f"it is a zip with {len(inside)} notebooks in it instead of one")
    notebook, notes = read[best]
    found = f"You submitted a zip with {len(inside)} notebooks"
    return notebook, [f"{found}: `{_shown(best)}` was graded, which is the lab's.", *notes]


def _best(
    found: Mapping[str, Sequence[NotebookNode]], lab: LabCells | None, wanted: str = ""
) -> str:
    """The name of the notebook with the most answers among those of the lab; "" if none is.

    ``found``: {name: cells}. ``wanted``: the name that it should have, which is enough with one.
    """
    common = {name: lab.count(cells) for name, cells in found.items()} if lab else {}
    # Labs use helpers that were the answers of others.
    likely = [name for name, count in common.items() if count and 4 * count >= max(common.values())]

    def rank(name: str) -> tuple[bool, int, int]:
        written = lab.count_written(found[name]) if lab else 0
        return name == wanted and written > 0, written, common[name]

    return max(likely, key=rank, default="")


def _read(content: bytes) -> tuple[NotebookNode, list[str]]:
    try:
        text, notes = repair.decode(content)
        is_script = script.is_script(text)
        raw, more = script.cells_of_script(text) if is_script else repair.cells_of_json(text)
        notes += more
        if len(raw) > MAX_CELLS:
            notes.append(f"Only the first {MAX_CELLS:,} of {len(raw):,} cells were read.")
        cells = [cell for cell in map(_cell, raw[:MAX_CELLS]) if cell is not None]
        if dropped := attachments.drop_excess(cells):
            most = attachments.MAX_CHARS * 0.75 / 1_000_000  # in base64, 3 bytes are 4 characters
            why = f"because together they were larger than {most:g} MB"
            notes.append(f"Pictures left out: {dropped}, {why}.")
    except Unreadable:
        raise
    except Exception as error:  # deep nesting, odd types: JSON may contain anything
        raise Unreadable(f"it is not a Jupyter notebook ({type(error).__name__})") from error
    is_cut = len(raw) > MAX_CELLS or any(note.startswith(repair.DAMAGED) for note in notes)
    file_hash = hashlib.sha256(content).hexdigest()[:8]
    about = {INCOMPLETE: file_hash} if is_script or is_cut else {}
    present = {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    return nbformat.from_dict(present), notes


def _cell(raw: Any) -> dict[str, Any] | None:
    """The relevant parts of a cell, in the current format; None if it is not a cell."""
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
    if kind == "code":
        cell["outputs"] = stored_outputs(raw.get("outputs"), MAX_OUTPUT_BYTES)
    if pictures := attachments.pictures_in(raw.get("attachments"), cell["source"]):
        cell["attachments"] = pictures
    metadata = raw.get("metadata")
    nbgrader = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    if isinstance(nbgrader, dict) and isinstance(nbgrader.get("grade_id"), str):
        cell["metadata"] = {"nbgrader": {"grade_id": nbgrader["grade_id"]}}
    return cell


# ---- which file to grade ------------------------------------------------------------------------

MAX_ENTRIES = 1000
MAX_CANDIDATES = 20  # whose cells are read
SIDE_FILES = ("timestamp.txt", "submission_secret.txt")  # nbgrader's own


def find_notebook(folder: Path, lab: str, cells: LabCells | None = None) -> tuple[Path | None, str]:
    """(the file to grade, a sentence for the student or "").

    The file with the lab's own name, whatever it is, unless only another one has the lab's
    ``cells``.  If there is none: the regular file of a readable kind that has some, else whose name
    is most similar, notebooks before zips and scripts.  If there is no path, the sentence says what
    was found instead.  Links are not followed.
    """
    wanted = f"{lab}.ipynb"
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)[:MAX_ENTRIES]
    except OSError:
        return None, f"Nothing was submitted for {lab}."
    files = [
        entry.name
        for entry in entries
        if entry.is_file(follow_symlinks=False)
        and not entry.name.startswith(".")
        and kind_of(entry.name)
    ]
    has_wanted = any(entry.name == wanted for entry in entries)
    if has_wanted and (wanted not in files or len(files) == 1):
        return folder / wanted, ""
    if not files:
        names = [e.name for e in entries if not (e.name.startswith(".") or is_noise(e.name))]
        names = [name for name in names if name not in SIDE_FILES]
        shown = ", ".join(f"`{_shown(name)}`" for name in names[:3])
        kind = "which is no notebook" if len(names) == 1 else "but no notebook"
        what = f"You submitted {shown}, {kind}" if shown else "You submitted no notebook"
        return None, f"{what}: expected `{wanted}`."
    files.sort(key=lambda name: (KINDS.index(kind_of(name)), _name_distance(name, lab), name))
    files.sort(key=lambda name: name != wanted)
    best = files[0]
    if len(files) > 1:
        best = _best(_cells_of(folder, files[:MAX_CANDIDATES], cells), cells, wanted) or best
    if best == wanted:
        return folder / wanted, ""
    others = " It was chosen from several files." if len(files) > 1 else ""
    missing = f"there was no `{wanted}`" if not has_wanted else f"`{wanted}` has none of its cells"
    return folder / best, f"`{_shown(best)}` was graded, because {missing}.{others}"


def _cells_of(
    folder: Path, names: Iterable[str], lab: LabCells | None
) -> dict[str, Sequence[NotebookNode]]:
    found = {}
    for name in names:
        with suppress(Unreadable):
            found[name] = read_notebook(read_content(folder / name), lab)[0].cells
    return found


def _name_distance(name: str, lab: str) -> int:
    """How far a name is from the lab's: 0 for 03_Ring_All_Reduce (1).ipynb, -Copy1, _final."""
    name, lab = _letters(name.rpartition(".")[0]), _letters(lab)
    if lab in name:
        return 0
    return 1 if lab.lstrip("0123456789") in name else 2


def _letters(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def _shown(name: str) -> str:
    """A file name is student input, too."""
    plain = "".join(c for c in name if c.isprintable() and c not in "`<>&")
    return plain[:80].encode("utf-8", "replace").decode("utf-8")
