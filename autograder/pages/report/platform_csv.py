"""Points in the format that a learning platform imports: its own gradebook export, filled in.

Canvas: https://github.com/instructure/canvas-lms/blob/master/lib/gradebook_importer.rb
Moodle: https://docs.moodle.org/en/Grade_import
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from autograder.grading.csv_tables import (
    BadTable,
    Table,
    escape_formula,
    read_table,
    write_atomically,
)
from autograder.grading.record.record import INFRASTRUCTURE_ERROR
from autograder.grading.roster.roster import Person, same_name
from autograder.pages.match_people import Keys, keys, match
from autograder.pages.report.read_labs import NOT_GRADED, NOT_SUBMITTED, RESUBMITTED, Lab
from autograder.pages.report.scores_csv import number

PLATFORMS = ("canvas", "moodle")
ALL_PLACED, NOT_ALL_PLACED = 0, 3

_ID = "ID"  # Canvas's column with its own numbers
_SECTION = "Section"
_POINTS = "Points Possible"  # in the first cell of Canvas's row of maxima
_FIXED = ("EX", "N/A")  # Canvas: excused, not assigned
_CANVAS = re.compile(r"(.*\S)\s+\(\d+\)")
_MOODLE = re.compile(r"(?:[^:]*:\s*)?(.*?)\s*(?:\(([^()]*)\))?")
_OTHER_KINDS = ("Percentage", "Letter", "Feedback")


def export(
    labs: Sequence[Lab],
    people: Sequence[Person],
    platform: str,
    source: Path | None,
    to: Path | None,
    headers: Mapping[str, str],
) -> int:
    """Returns the exit status. ``headers``: {lab: column}, where names differ.

    If it raises BadTable, nothing has been written.
    """
    if source and to and source.resolve() == to.resolve():
        raise BadTable(f"--to {to} would replace the platform's own file: name another one")
    table = read_table(source) if source else _new_table(labs, people, platform, headers)
    if platform == "canvas" and not {_ID, _SECTION} <= set(table.header):
        raise BadTable(
            f"{source} is not a gradebook exported from Canvas: no column {_ID!r} or {_SECTION!r}"
        )
    columns = _columns(labs, table, platform, headers, source)
    of_students = [i for i, row in enumerate(table.rows) if _is_student(table, row, platform)]
    for index in of_students:
        row = table.rows[index]
        row += [""] * (len(table.header) - len(row))
    first = min(column for _, column in columns)
    about = [_keys(table, table.rows[i][:first], platform) for i in of_students]
    rows = {student: of_students[i] for student, i in match(people, about).items()}
    missing = set()
    for lab, column in columns:
        missing |= _fill(lab, table, column, rows)
    text = table.text()
    if to:
        write_atomically(to, text.encode())
        _say(f"wrote {to}")
    else:
        sys.stdout.write(text)
    # List only students with points, and people on the platform.
    others = [_label(table.rows[i][:first]) for i in of_students if i not in rows.values()]
    unplaced = [f"{student} (has points)" for student in sorted(missing)]
    absent = {p.student for p in people} - set(rows) - missing
    _list(f"in the gradebook, but in no row of {source or 'the file'}", unplaced + sorted(absent))
    _list("on the platform, but not in the gradebook", others)
    return NOT_ALL_PLACED if missing else ALL_PLACED


def _fill(lab: Lab, table: Table, column: int, rows: Mapping[str, int]) -> set[str]:
    """Write one lab's column; returns the students with points who have no row."""
    filled, waiting, kept, missing = 0, [], [], set()
    for scores in lab.scores:
        state, row = lab.state(scores), rows.get(scores.student)
        if state == NOT_SUBMITTED:
            continue
        is_waiting = state in (NOT_GRADED, RESUBMITTED, INFRASTRUCTURE_ERROR)
        if is_waiting or scores.pending or not scores.marks:
            waiting.append(scores.student)
        elif row is None:
            missing.add(scores.student)
        elif table.rows[row][column].strip() in _FIXED:
            kept.append(f"{scores.student} ({table.rows[row][column].strip()})")
        else:
            table.rows[row][column] = number(scores.total)
            filled += 1
    _say(f"{lab.name}: {filled} points written to column {table.header[column]!r}")
    _list("  not completely graded, so left unchanged", waiting)
    _list("  left unchanged", kept)
    return missing


def _columns(
    labs: Sequence[Lab],
    table: Table,
    platform: str,
    headers: Mapping[str, str],
    source: Path | None,
) -> list[tuple[Lab, int]]:
    """The column of each lab that has one."""
    if unknown := set(headers) - {lab.name for lab in labs}:
        raise BadTable(f"--column names no exported lab: {', '.join(sorted(unknown))}")
    titles = [_title(header, platform) for header in table.header]
    found = []
    for lab in labs:
        asked = headers.get(lab.name)
        wanted = same_name(asked or lab.name)
        fits = [
            i
            for i, (header, title) in enumerate(zip(table.header, titles, strict=True))
            if (title and same_name(title) == wanted) or (asked and header.strip() == asked)
        ]
        if len(fits) > 1 or (asked and not fits):
            several, none = f"several columns of {source} match", f"no column of {source} matches"
            problem = several if fits else none
            raise BadTable(f"{problem} {asked or lab.name!r}{_choice(table, lab)}")
        if fits:
            _check_points(table, fits[0], lab, platform)
            found.append((lab, fits[0]))
        else:
            _say(f"{lab.name}: no column of that name, left out")
    if not found:
        raise BadTable(f"{source} has no column of {labs[0].name}{_choice(table, labs[0])}")
    return found


def _choice(table: Table, lab: Lab) -> str:
    columns = "\n  ".join(repr(header) for header in table.header)
    return f": choose one with --column {lab.name}=NAME. The columns are\n  {columns}"


def _title(header: str, platform: str) -> str:
    """The platform's name for what a column grades; "" for other columns."""
    if platform == "canvas":
        found = _CANVAS.fullmatch(header.strip())
        return found[1] if found else header
    parts = _MOODLE.fullmatch(header.strip())
    return parts[1] if parts and parts[2] not in _OTHER_KINDS else ""


def _check_points(table: Table, column: int, lab: Lab, platform: str) -> None:
    """Check the maximum points, which Canvas's file has for each column and Moodle's does not."""
    max_points = next((s.max_points for s in lab.scores), 0.0)
    for row in table.rows if platform == "canvas" else []:
        if _POINTS in row[0] and column < len(row):
            text = row[column].strip()
            try:
                same = abs(float(text.replace(",", ".")) - max_points) < 0.005
            except ValueError:
                same = False
            if text and not same:
                raise BadTable(
                    f"the column {table.header[column]!r} has {text!r} points possible, but "
                    f"{lab.name} has {max_points:g}: change the assignment in Canvas and export it "
                    "again"
                )


def _is_student(table: Table, row: Sequence[str], platform: str) -> bool:
    """Canvas also has rows for maxima and posting policies, without a number or a login."""
    if platform == "moodle":
        return True
    return _POINTS not in row[0] and any(_keys(table, row, platform).identifiers)


def _keys(table: Table, row: Sequence[str], platform: str) -> Keys:
    """Keys of a row. Moodle's first two columns are names, with headers in the user's language."""
    if platform == "moodle":
        return keys(row[2:], *row[:2])
    number = table.header.index(_ID)
    return keys(row[number : table.header.index(_SECTION)], *row[:number])


def _new_table(
    labs: Sequence[Lab], people: Sequence[Person], platform: str, headers: Mapping[str, str]
) -> Table:
    """A table for use without the platform's own export."""
    names = [headers.get(lab.name, lab.name) for lab in labs]
    none = [""] * len(labs)
    if platform == "moodle":
        header = ["First name", "Last name", "ID number", "Email address"]
        rows = [[p.first_name, p.last_name, p.student, p.email] for p in people]
        return Table(header + names, [[*map(escape_formula, row), *none] for row in rows], [])
    header = ["Student", _ID, "SIS User ID", "SIS Login ID", "Section"]
    most = [number(next((s.max_points for s in lab.scores), 0.0)) for lab in labs]
    rows = [[_last_first(person), person.canvas_id, "", person.student, ""] for person in people]
    filled = [[*map(escape_formula, row), *none] for row in rows]
    return Table(header + names, [[f"    {_POINTS}", "", "", "", "", *most], *filled], [])


def _last_first(person: Person) -> str:
    return ", ".join(filter(None, (person.last_name, person.first_name))) or person.student


def _label(row: Sequence[str]) -> str:
    return " ".join(cell.strip() for cell in row[:4] if cell.strip())


def _list(what: str, who: Sequence[str]) -> None:
    if who:
        _say(f"{what}: {', '.join(who)}")


def _say(line: str) -> None:
    print(line, file=sys.stderr)
