"""Which names of students' folders can be used: one rule, for all that a name goes through.

It becomes a file of records, a key in nbgrader's database, a pattern and a regular expression of
nbgrader's, an address in formgrader, a row in a table, and words on a terminal.
"""

from __future__ import annotations

MAX_CHARS = 128  # of nbgrader's column; PostgreSQL takes no more
MAX_BYTES = 240  # file systems take 255, and files are called STUDENT.json
NBGRADERS = "*?[]"  # begin a pattern
FORMGRADERS = '#%?\\<>"'  # mean something in an address or in HTML
SEPARATOR = ","  # in lists of students


def why_refused(name: str) -> str:
    """ "" for a name that can be used, else why not, to be read behind it."""
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        return "is not UTF-8"
    if not name.isprintable():
        return "holds a line break or another character that cannot be shown"
    if name.startswith("."):
        return "begins with a dot: nbgrader does not see it"
    if name != name.strip():
        return "begins or ends with a space"
    if len(name) > MAX_CHARS:
        return f"is longer than {MAX_CHARS} characters"
    if size_bytes > MAX_BYTES:
        return f"is longer than {MAX_BYTES} bytes"
    special = [c for c in NBGRADERS + FORMGRADERS + SEPARATOR if c in name]
    return f"holds {special[0]}, which means something else to nbgrader" if special else ""
