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
from autograder.grading.roster.class_list import column_of
from autograder.grading.roster.roster import COLUMNS, Namesakes, NotFound, Roster

NEEDED = ("lab", "days", "until", "reason")  # and one that names the student


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


def read_extensions(
    path: Path, due: Mapping[str, datetime | None], roster: Roster | None = None
) -> Extensions | None:
    """None without a file. ``due``: {lab of the gradebook: due date in UTC}. ``roster``: for
    students who are not named by their id.

    Raises BadTable, which lists every bad row.
    """
    if not path.exists():
        return None
    table = read_table(path)
    columns(table.header, NEEDED, path)
    names = [column_of(heading) or heading.strip().lower() for heading in table.header]
    if not {"student", "name", *COLUMNS} & set(names):
        columns(table.header, ["student"], path)
    found: Extensions = {}
    wrong = []
    for line, row in zip(table.lines, table.rows, strict=True):
        cells = dict.fromkeys(names, "")
        cells |= {name: cell.strip() for name, cell in zip(names, row, strict=False)}
        try:
            student = _student(cells, roster or Roster([]))
            extension = _extension(student, cells, line, due)
            key = extension.student, extension.lab
            if key in found:
                raise ValueError(f"{key[0]} has an extension in line {found[key].line} already")
            found[key] = extension
        except (NotFound, ValueError, OverflowError) as error:
            wrong.append(f"{path}, line {line}: {error}")
    if wrong:
        raise BadTable("\n".join([*wrong, "Correct the file and run the command again."]))
    return found


def _student(cells: Mapping[str, str], roster: Roster) -> str:
    """Raises NotFound, but not for an id: the gradebook may have more students than the roster."""
    student = cells.get("student", "")
    if student in roster.people:
        return student
    try:
        return roster.named_in(cells)
    except NotFound as error:
        if not student or isinstance(error, Namesakes):
            raise
        return student


def _extension(
    student: str, cells: Mapping[str, str], line: int, due: Mapping[str, datetime | None]
) -> Extension:
    lab, days, until = (cells[name] for name in NEEDED[:3])
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
