"""grading/extensions.csv: who may submit a lab later."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from autograder.grading.course_time import to_utc
from autograder.grading.csv_tables import BadTable, columns, read_table
from autograder.grading.late.policy import later

NEEDED = ("student", "lab", "days", "until", "reason")


@dataclass(frozen=True)
class Extension:
    student: str
    lab: str
    line: int  # of the file
    days: float = 0.0
    until: datetime | None = None  # UTC; else ``days`` counts

    def due_at(self, due_at: datetime) -> datetime:
        """The new due date, from the lab's; both UTC."""
        return self.until or later(due_at, self.days)


Extensions = dict[tuple[str, str], Extension]  # {(student, lab): ...}


def read_extensions(path: Path, due: Mapping[str, datetime | None]) -> Extensions | None:
    """None without a file. ``due``: {lab of the gradebook: due date in UTC}.

    Raises BadTable, which lists every bad row.
    """
    if not path.exists():
        return None
    table = read_table(path)
    at = columns(table.header, NEEDED, path)
    found: Extensions = {}
    wrong = []
    for line, row in zip(table.lines, table.rows, strict=True):
        cells = {name: row[i].strip() if i < len(row) else "" for name, i in at.items()}
        try:
            extension = _extension(cells, line, due)
            key = extension.student, extension.lab
            if key in found:
                raise ValueError(f"{key[0]} has an extension in line {found[key].line} already")
            found[key] = extension
        except (ValueError, OverflowError) as error:
            wrong.append(f"{path}, line {line}: {error}")
    if wrong:
        raise BadTable("\n".join([*wrong, "Correct the file and run the command again."]))
    return found


def _extension(
    cells: Mapping[str, str], line: int, due: Mapping[str, datetime | None]
) -> Extension:
    student, lab, days, until = (cells[name] for name in NEEDED[:4])
    if not student:
        raise ValueError("the student is missing")
    if lab not in due:
        raise ValueError(f"there is no lab {lab!r} in the gradebook (it has: {', '.join(due)})")
    if bool(days) == bool(until):
        raise ValueError("write either days (such as 3) or until (such as 2026-10-08 18:00)")
    if until:
        end = _end(until)
        lab_due = due[lab]
        if lab_due and end < lab_due:
            raise ValueError(f"{until} is before the due date of {lab}")
        return Extension(student, lab, line, until=end)
    try:
        count = float(days)
    except ValueError:
        count = math.nan
    if not 0 < count <= 366:
        raise ValueError(f"days is {days!r}, not a number above 0 and at most 366")
    return Extension(student, lab, line, days=count)


def _end(text: str) -> datetime:
    """Without a time of day, the whole day is included."""
    try:
        end = to_utc(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"until is {text!r}, not a date such as 2026-10-08 18:00") from error
    assert end is not None
    return later(end, 1) - timedelta(seconds=1) if ":" not in text else end
