"""Pictures pasted into a written answer: Jupyter keeps them in the cell, by name.

    {"source": "![](attachment:sketch.png)", "attachments": {"sketch.png": {"image/png": BASE64}}}

Here only their shape and size count; ``feedback.images`` decides which of them a page shows.
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
MAX_FORMS = 3  # of one picture
IMAGE = re.compile(r"image/[a-z0-9.+-]{1,40}")

Pictures = dict[str, dict[str, str]]  # {name: {type: base64}}


def pictures_in(raw: Any, source: str) -> Pictures:
    """Those that ``source`` shows, out of whatever a file has under "attachments"."""
    found = raw if isinstance(raw, dict) else {}
    named = {name: _forms(bundle) for name, bundle in islice(found.items(), MAX_PICTURES)}
    # A name with a lone surrogate could not be written to a file.
    usable = {name: f for name, f in named.items() if name.isprintable() and f}
    return _shown(usable, plain(source)) if usable else {}


def pictures_for(text: str, cells: Iterable[Mapping[str, Any]]) -> Pictures:
    """For a text made from some of ``cells``; where two have the same name, from one in it."""
    having = [cell for cell in cells if cell.get("attachments")]
    having.sort(key=lambda cell: str(cell.get("source")).strip() not in text)
    pictures: Pictures = {}
    spelled = plain(text) if having else ""
    for cell in reversed(having):
        pictures.update(_shown(cell["attachments"], spelled))
    return pictures


def limit(cells: Iterable[dict[str, Any]]) -> int:
    """Drops the pictures beyond MAX_CHARS; how many these were."""
    room, dropped = MAX_CHARS, 0
    for cell in cells:
        for name, forms in list(cell.get("attachments", {}).items()):
            size = sum(map(len, forms.values()))
            if size <= room:
                room -= size
            else:
                del cell["attachments"][name]
                dropped += 1
    return dropped


def plain(name: str) -> str:
    """The same for a name and for how Markdown or HTML spell it."""
    return unquote(unescape(name))


def _shown(pictures: Mapping[str, Any], spelled: str) -> Pictures:
    return {
        name: forms for name, forms in pictures.items() if f"attachment:{plain(name)}" in spelled
    }


def _forms(bundle: Any) -> dict[str, str]:
    forms = islice(bundle.items() if isinstance(bundle, dict) else (), MAX_FORMS)
    texts = {mime: _text(data) for mime, data in forms if IMAGE.fullmatch(mime)}
    return {mime: text for mime, text in texts.items() if text}


def _text(data: Any) -> str:
    """nbformat has text as one string or as a list of lines."""
    lines = data if isinstance(data, list) else [data]
    joined = "".join(line for line in lines if isinstance(line, str))
    return joined.encode("utf-8", "replace").decode("utf-8")
