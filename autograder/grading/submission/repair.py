"""Extracts the cells from a file that is not quite a notebook, and reports the repairs.

Each repair is one that a person could make in an editor.  Nothing is invented: a cell
whose text cannot be read completely is left out.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from typing import Any

from autograder.grading.submission.files import Unreadable
from autograder.grading.submission.kinds import KINDS, is_noise, kind_of
from autograder.grading.submission.lab_cells import BLANK

ZIP = b"PK\x03\x04"
SIDES = {"<<<<<<<": "ours", "|||||||": "base", "=======": "theirs", ">>>>>>>": "both"}
CELL_START = re.compile(r'\{\s*"(?:cell_type|attachments|execution_count|id|metadata|source)"\s*:')
CELLS = re.compile(r'"cells"\s*:\s*\[')
# A string, which is kept as it is, or a comma before a closing bracket.  An unterminated string
# extends to the last character, so that no file makes this slow.
TRAILING_COMMA = re.compile(r'("(?:[^"\\]|\\.)*+"?)|,(\s*+[\]}])')

DAMAGED = "The file was damaged"
MAX_ENTRIES = 1000  # of a zip
MAX_NOTEBOOKS = 20  # in a zip
MAX_LOST = 20  # places in a damaged file from which no cell can be read

Cells = list[Any]
Notes = list[str]


# ---- bytes to text ------------------------------------------------------------------------------


def unzip(content: bytes, max_bytes: int) -> dict[str, bytes]:
    """{name: content} of the notebooks in a zip, else of its scripts, read in memory: nothing is
    written to disk."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()[:MAX_ENTRIES]
            found: dict[str, list[zipfile.ZipInfo]] = {kind: [] for kind in KINDS}
            for entry in entries:
                if not entry.is_dir() and not is_noise(entry.filename) and kind_of(entry.filename):
                    found[kind_of(entry.filename)].append(entry)
            chosen = found[".ipynb"] or found[".py"]
            if not chosen:
                raise Unreadable(
                    "it is a zip in a zip" if found[".zip"] else "it is a zip without a notebook"
                )
            inside: dict[str, bytes] = {}
            for entry in chosen[:MAX_NOTEBOOKS]:
                if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise Unreadable("it is a zip of an unusual kind")  # may need any memory
                with archive.open(entry) as stream:
                    # Whatever size its header claims.
                    inside[entry.filename] = stream.read(max_bytes + 1)
                if sum(map(len, inside.values())) > max_bytes:
                    what = "the notebook" if len(chosen) == 1 else "what is"
                    raise Unreadable(
                        f"{what} in the zip is larger than {max_bytes // 1_000_000} MB"
                    )
    except Unreadable:
        raise
    except Exception as error:  # encrypted, damaged, an unknown method
        raise Unreadable(f"it is a zip that cannot be opened ({type(error).__name__})") from error
    if any(each.startswith(ZIP) for each in inside.values()):
        raise Unreadable("it is a zip in a zip")
    return inside


def decode(content: bytes) -> tuple[str, Notes]:
    """Text in any encoding that an editor may have used."""
    if not content.strip(b"\x00 \t\r\n"):
        raise Unreadable("it is empty")
    encoding = json.detect_encoding(content)
    notes = []
    if not encoding.startswith("utf-8"):
        notes.append(f"The file was in {encoding.upper()}, not UTF-8: it was converted.")
    text = content.decode(encoding, "replace")
    if "\ufffd" in text and "\ufffd".encode() not in content:
        notes.append("The file contained bytes that are not text: each was replaced by `\ufffd`.")
    return text, notes


# ---- JSON ---------------------------------------------------------------------------------------


def cells_of_json(text: str) -> tuple[Cells, Notes]:
    """Raises Unreadable if no cells can be found."""
    notes: Notes = []
    document = _parse(text)
    if document is None and has_conflict(text):
        document, note = _choose_side(text)
        notes.append(note)
    if document is None:
        document = _parse(TRAILING_COMMA.sub(lambda match: match[1] or match[2], text))
        notes += ["The file was not valid JSON: trailing commas were removed."] if document else []
    if document is not None:
        return _cells_in(document), notes
    cells, lost = _cells_one_by_one(_side(text, "ours") if has_conflict(text) else text)
    if not cells:
        raise Unreadable(_why_unreadable(text))
    rest = ", the rest could not" if lost else ""
    return cells, [*notes, f"{DAMAGED}: {len(cells)} cells could be read{rest}."]


def _why_unreadable(text: str) -> str:
    first = text.lstrip()[:15].lower()
    if first.startswith("%pdf"):
        return "it is a PDF, not a notebook"
    if first.startswith(("<!doctype html", "<html")):
        return "it is a web page, not a notebook"
    return "it is not a Jupyter notebook (no cell can be read)"


def _parse(text: str) -> Any:
    """None if it is not JSON."""
    try:
        return json.loads(text.strip("\x00\ufeff \t\r\n"), strict=False)
    except (ValueError, RecursionError):
        return None


def _cells_in(document: Any) -> Cells:
    """The cells of nbformat 4, or of the worksheets in nbformat 3."""
    if isinstance(document, list) and any(_looks_like_cell(item) for item in document):
        return document  # the list of cells alone
    if isinstance(document, dict):
        sheets = document.get("worksheets")
        if isinstance(document.get("cells"), list):
            return list(document["cells"])
        if isinstance(sheets, list):
            found = [sheet["cells"] for sheet in sheets if isinstance(sheet, dict)]
            return [cell for cells in found if isinstance(cells, list) for cell in cells]
    raise Unreadable("it is not a Jupyter notebook (it has no cells)")


def _looks_like_cell(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("cell_type"), str)


def _cells_one_by_one(text: str) -> tuple[Cells, bool]:
    """(every cell that can be read completely, whether anything was lost)."""
    begin = CELLS.search(text)
    at, cells, lost = begin.end() if begin else 0, [], 0
    decoder = json.JSONDecoder(strict=False)
    while lost < MAX_LOST and (start := CELL_START.search(text, at)) is not None:
        try:
            cell, at = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            at, lost = start.end(), lost + 1
            continue
        if _looks_like_cell(cell):
            cells.append(cell)
    return cells, lost > 0


# ---- merge conflicts ----------------------------------------------------------------------------


def has_conflict(text: str) -> bool:
    starts = {line[:7] for line in text.splitlines()}
    return {"<<<<<<<", "=======", ">>>>>>>"} <= starts


def sides_of(text: str) -> tuple[str, str]:
    """The text on both sides of a merge conflict, the student's own branch first."""
    return _side(text, "ours"), _side(text, "theirs")


def _side(text: str, wanted: str) -> str:
    now, kept = "both", []
    for line in text.splitlines(keepends=True):
        marker = SIDES.get(line[:7])
        if marker is not None and (now != "both" or marker == "ours"):
            now = marker
        elif now in ("both", wanted):
            kept.append(line)
    return "".join(kept)


def _choose_side(text: str) -> tuple[Any, str]:
    """The readable side with fewer unwritten answers; the first if they are equal."""
    found = "The file contained merge conflict markers"
    names = ("first side (your own branch)", "second side (the other branch)")
    sides = zip(sides_of(text), names, strict=True)
    for side, which in sorted(sides, key=lambda each: each[0].count(BLANK)):
        if (document := _parse(side)) is not None:
            return document, f"{found}: the {which} was graded."
    return None, f"{found}."
