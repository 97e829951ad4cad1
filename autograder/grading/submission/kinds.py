"""Which files may be a notebook, by their names: one rule for every way in."""

from __future__ import annotations

import re

KINDS = (".ipynb", ".zip", ".py")  # in order of preference
NOISE = re.compile(
    r"(^|/)(__MACOSX|\.ipynb_checkpoints|\.git)/|(^|/)(\._[^/]*|\.DS_Store|Thumbs\.db)$"
)


def kind_of(name: str) -> str:
    """One of KINDS; "" for a file that is not read.

    Browsers also save notebook.ipynb.json, notebook.ipynb.txt and script.py.txt.
    """
    name = name.lower()
    kind = next((kind for kind in KINDS if name.removesuffix(".txt").endswith(kind)), "")
    return kind or (".ipynb" if ".ipynb" in name else "")


def is_noise(path: str) -> bool:
    """Whether an operating system or an editor added this file to a folder or zip."""
    return NOISE.search(path) is not None
