"""Reads the table of students that an instructor has, from a spreadsheet or a platform."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from autograder.grading import csv_tables
from autograder.grading.roster.roster import COLUMNS, Person
from autograder.grading.submission.names import MAX_CHARS, why_unusable

# {a heading in lower case, words joined by _: our column}
ALIASES = {
    "student_id": "student", "username": "student", "user_name": "student",
    "firstname": "first_name", "given_name": "first_name",
    "lastname": "last_name", "surname": "last_name", "family_name": "last_name",
    "last_name_surname": "last_name", "full_name": "name",
    "e_mail": "email", "mail": "email", "email_address": "email",
    "sis_login_id": "canvas_login", "moodle_full_name": "moodle_name",
    # Canvas's export of groups
    "user_id": "student", "login_id": "canvas_login", "canvas_user_id": "canvas_id",
}  # fmt: skip
# In Canvas's export of the gradebook, `Student` is a name. The login identifies a student, as in
# Canvas's import; the number in `SIS User ID` where there is no login.
CANVAS = {"student": "name", "id": "canvas_id"}
CANVAS_HEADINGS = {"student", "id", "section"}
CANVAS_TEST_STUDENT = "Student, Test"


def read_class_list(path: Path) -> tuple[list[Person], set[str], list[str]]:
    """(the people, our columns that the table has, headings of columns that were not used).

    Raises BadTable.
    """
    rows, used, unused = _rows(path)
    people, wrong = [], []
    lines = defaultdict(list)
    for line, row in rows:
        person = _person(row)
        if why := _why_wrong(person):
            wrong.append(f"line {line}: {why}")
        people.append(person)
        lines[person.student].append(str(line))
    wrong = wrong or [
        f"{student} is in lines {' and '.join(numbers)}: keep one of them"
        for student, numbers in lines.items()
        if len(numbers) > 1
    ]
    if wrong := wrong or list(shared_ids(people)):
        listed = "\n".join(f"  {each}" for each in wrong)
        raise csv_tables.BadTable(f"{path} was not used, and nothing was changed:\n{listed}")
    if not people:
        raise csv_tables.BadTable(f"{path} lists no students")
    return people, used | ({"first_name", "last_name"} if "name" in used else set()), unused


def shared_ids(people: Iterable[Person]) -> Iterable[str]:
    """A sentence for each id that two people have, so that it identifies neither."""
    owners: dict[str, list[str]] = defaultdict(list)
    for person in people:
        for each in person.ids | {f"Canvas id {person.canvas_id}" if person.canvas_id else ""}:
            owners[each].append(person.student)
    for shared, students in owners.items():
        if shared and len(students) > 1:
            yield f"{shared} belongs to several students: {', '.join(students)}"


def _rows(path: Path) -> tuple[list[tuple[int, dict[str, str]]], set[str], list[str]]:
    table = csv_tables.read_table(path)
    headings = table.header
    plain = [_plain(heading) for heading in headings]
    is_canvas = set(plain) >= CANVAS_HEADINGS
    names = dict(CANVAS) if is_canvas else {}
    if is_canvas and "sis_login_id" not in plain:
        names["sis_user_id"] = "student"
    columns = [_column(names.get(each, each)) for each in plain]
    if twice := sorted({each for each in columns if each and columns.count(each) > 1}):
        raise csv_tables.BadTable(
            f"{path} has several columns for {', '.join(twice)}: keep one of each"
        )
    if not {"student", "canvas_login", "email"} & set(columns):
        known = ", ".join(("name", *COLUMNS))
        raise csv_tables.BadTable(
            f"{path} needs a column `student`, `canvas_login` or `email` in its first line, which "
            f"has: {', '.join(headings)}. Columns that are read: {known}"
        )
    rows = []
    for line, cells in zip(table.lines, table.rows, strict=True):
        texts = [unicodedata.normalize("NFC", cell).strip() for cell in cells]
        row = {column: text for column, text in zip(columns, texts, strict=False) if column}
        if is_canvas and (not row.get("canvas_id") or row.get("name") == CANVAS_TEST_STUDENT):
            continue  # maxima, posting policies and Canvas's own test student
        if any(row.values()):
            rows.append((line, row))
    unused = [heading for heading, column in zip(headings, columns, strict=True) if not column]
    return rows, set(filter(None, columns)), unused


def _plain(heading: str) -> str:
    return "_".join(re.findall(r"\w+", heading.casefold().replace("-", " ")))


def column_of(heading: str) -> str:
    """Our name for a column with this heading, or ""."""
    return _column(_plain(heading))


def _column(plain: str) -> str:
    plain = ALIASES.get(plain, plain)
    return plain if plain == "name" or plain in COLUMNS else ""


def _person(row: dict[str, str]) -> Person:
    name = row.pop("name", "")
    if "," in name:
        last, _, first = name.partition(",")
    else:
        first, _, last = name.rpartition(" ")
    person = Person(**{"student": "", **row})
    return replace(
        person,
        student=person.student or person.canvas_login or person.email,
        first_name=person.first_name or first.strip(),
        last_name=person.last_name or last.strip(),
    )


def _why_wrong(person: Person) -> str:
    if not person.student:
        return "has neither `student` nor an id that could be used instead"
    if why := why_unusable(person.student):
        return f"{person.student!r} cannot be used as a student's id: it {why}"
    if "/" in person.student:
        return f"{person.student!r} cannot be used as a student's id: it contains /"
    if person.canvas_id and not person.canvas_id.isdecimal():
        return f"canvas_id {person.canvas_id!r} is not a number"
    if long := [column for column in COLUMNS if len(getattr(person, column)) > MAX_CHARS]:
        return f"{long[0]} is longer than {MAX_CHARS} characters"
    return ""


def merged(old: Person, new: Person) -> Person:
    """``new``, with the old value where it has none."""
    return Person(*(getattr(new, name) or getattr(old, name) for name in COLUMNS))
