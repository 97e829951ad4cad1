"""Which names of students' folders can be used: one rule for every place where a name ends up.

It becomes the name of a record's file, a key in nbgrader's database, a glob pattern and a regular
expression in nbgrader, a URL in formgrader, a table row, and text on a terminal.
"""

from __future__ import annotations

MAX_CHARS = 128  # of nbgrader's column; PostgreSQL enforces it
MAX_BYTES = 240  # file systems allow 255, and files are named STUDENT.json
GLOB_CHARS = "*?[]"
URL_CHARS = '#%?\\<>"'  # with a meaning in a URL or in HTML
SEPARATOR = ","  # in lists of students


def why_unusable(name: str) -> str:
    """ "" for a usable name, else why not, as the end of a sentence that starts with the name."""
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        return "is not UTF-8"
    if not name.isprintable():
        return "contains a line break or another unprintable character"
    if name.startswith("."):
        return "begins with a dot, so nbgrader ignores it"
    if name != name.strip():
        return "begins or ends with a space"
    if len(name) > MAX_CHARS:
        return f"is longer than {MAX_CHARS} characters"
    if size_bytes > MAX_BYTES:
        return f"is longer than {MAX_BYTES} bytes"
    special = [c for c in GLOB_CHARS + URL_CHARS + SEPARATOR if c in name]
    return f"contains {special[0]}, which is special in nbgrader" if special else ""
