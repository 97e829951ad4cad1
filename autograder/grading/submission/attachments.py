"""Pictures pasted into a written answer: Jupyter stores them in the cell by name.

    {"source": "![](attachment:sketch.png)", "attachments": {"sketch.png": {"image/png": BASE64}}}

This module checks their structure and size; ``pages.html.images`` decides which are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import unescape
from itertools import islice
from typing import Any
from urllib.parse import unquote

MAX_CHARS = 10_000_000  # base64 of all pictures of a notebook
MAX_PICTURES = 50  # of one cell
MAX_FORMATS = 3  # of one picture
IMAGE = re.compile(r"image/[a-z0-9.+-]{1,40}")

Pictures = dict[str, dict[str, str]]  # {name: {type: base64}}


def pictures_in(raw: Any, source: str) -> Pictures:
    """The pictures that ``source`` shows, from a cell's "attachments" of whatever type."""
    found = raw if isinstance(raw, dict) else {}
    named = {name: _formats(bundle) for name, bundle in islice(found.items(), MAX_PICTURES)}
    # A name with a lone surrogate could not be written to a file.
    usable = {name: f for name, f in named.items() if name.isprintable() and f}
    return _shown(usable, decode(source)) if usable else {}


def pictures_for(text: str, cells: Iterable[Mapping[str, Any]]) -> Pictures:
    """The pictures for ``text``, made from some of ``cells``; of two with the same name, the one
    whose cell is in the text."""
    illustrated = [cell for cell in cells if cell.get("attachments")]
    illustrated.sort(key=lambda cell: str(cell.get("source")).strip() not in text)
    pictures: Pictures = {}
    decoded = decode(text) if illustrated else ""
    for cell in reversed(illustrated):
        pictures.update(_shown(cell["attachments"], decoded))
    return pictures


def drop_excess(cells: Iterable[dict[str, Any]]) -> int:
    """Drop the pictures beyond MAX_CHARS; returns how many."""
    room, dropped = MAX_CHARS, 0
    for cell in cells:
        for name, formats in list(cell.get("attachments", {}).items()):
            size = sum(map(len, formats.values()))
            if size <= room:
                room -= size
            else:
                del cell["attachments"][name]
                dropped += 1
    return dropped


def decode(name: str) -> str:
    """A picture's name, however Markdown or HTML encode it."""
    return unquote(unescape(name))


def _shown(pictures: Mapping[str, Any], decoded: str) -> Pictures:
    return {
        name: formats
        for name, formats in pictures.items()
        if f"attachment:{decode(name)}" in decoded
    }


def _formats(bundle: Any) -> dict[str, str]:
    formats = islice(bundle.items() if isinstance(bundle, dict) else (), MAX_FORMATS)
    texts = {mime: _text(data) for mime, data in formats if IMAGE.fullmatch(mime)}
    return {mime: text for mime, text in texts.items() if text}


def _text(data: Any) -> str:
    """nbformat stores text as one string or as a list of lines."""
    lines = data if isinstance(data, list) else [data]
    joined = "".join(line for line in lines if isinstance(line, str))
    return joined.encode("utf-8", "replace").decode("utf-8")
