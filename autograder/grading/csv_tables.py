"""CSV files of instructors, spreadsheets and learning platforms."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_BOM = "\ufeff"


class BadTable(Exception):
    """A CSV file cannot be read or used: where, why, and what to do."""


@dataclass(frozen=True)
class Table:
    header: list[str]
    rows: list[list[str]]
    lines: list[int]  # the line of the file on which each row ends
    delimiter: str = ","
    has_bom: bool = False

    def text(self) -> str:
        """As a file, with the delimiter and byte order mark that it had."""
        out = io.StringIO()
        writer = csv.writer(out, delimiter=self.delimiter, lineterminator="\n")
        writer.writerows([self.header, *self.rows])
        return (_BOM if self.has_bom else "") + out.getvalue()


def read_table(path: Path) -> Table:
    """Separated by commas, semicolons or tabs, with a header; skips empty rows.

    Raises BadTable.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadTable(f"{path} is not UTF-8: save it as `CSV UTF-8` and try again") from error
    except OSError as error:
        raise BadTable(f"{path} cannot be read: {error.strerror}") from error
    has_bom, text = text.startswith(_BOM), text.removeprefix(_BOM)
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows, lines = [], []
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise BadTable(f"{path}, line {reader.line_num}: {error}") from error
    if not rows:
        raise BadTable(f"{path} is empty: its first line must name the columns")
    return Table(rows[0], rows[1:], lines[1:], delimiter, has_bom)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a temporary file, then rename it: a reader sees the old file or all of the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_bytes(content)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def escape_formula(text: str) -> str:
    """Prefix with an apostrophe what a spreadsheet would evaluate as a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def columns(names: Sequence[str], needed: Iterable[str], path: Path) -> dict[str, int]:
    """{lower-case name: index}. Raises BadTable if one is missing."""
    found = {name.strip().lower(): index for index, name in enumerate(names)}
    for name in needed:
        if name not in found:
            has = ", ".join(names)
            raise BadTable(f"{path}, line 1: there is no column {name!r} (it has: {has})")
    return found
