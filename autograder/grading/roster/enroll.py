"""Adds the people in a table to nbgrader's gradebook and to the roster. Deletes none."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from nbgrader.coursedir import CourseDirectory

from autograder.grading.csv_tables import BadTable
from autograder.grading.gradebook.database import opened, prepare
from autograder.grading.nbgrader_app import nbgrader_app
from autograder.grading.roster.class_list import read_class_list, shared_ids
from autograder.grading.roster.remove import removed_students
from autograder.grading.roster.roster import (
    COLUMNS,
    ROSTER,
    Person,
    Roster,
    read_roster,
    same_id,
    write_roster,
)
from autograder.grading.submission.folders import grading_folder


def enroll(table: Path) -> tuple[str, bool]:
    """(what was changed, for the terminal; whether everybody in the table is enrolled).

    An empty cell removes what was there before; what the table has no column for is kept. Raises
    BadTable or GradebookError before anything is changed. If it is interrupted, run it again: the
    result is the same.
    """
    course = CourseDirectory(parent=nbgrader_app())
    folder = grading_folder(course)
    listed, used, unused = read_class_list(table)
    before = read_roster(folder)
    old = before.people if before else {}
    gone = {same_id(s): s for s in removed_students(folder) if s not in old}
    left = [gone[same_id(p.student)] for p in listed if same_id(p.student) in gone]
    given = [p for p in listed if same_id(p.student) not in gone]
    kept = [name for name in COLUMNS if name not in {"student", *used}]
    new = {
        p.student: replace(p, **{name: getattr(old.get(p.student, p), name) for name in kept})
        for p in given
    }
    everyone = old | new
    if wrong := list(shared_ids(everyone.values())):
        raise BadTable(
            f"{table} and {folder / ROSTER} contradict each other, and nothing was changed:\n"
            + "\n".join(f"  {each}" for each in [*wrong, *_new_ids(old, new)])
        )
    prepare(course.db_url)
    with opened(course) as gradebook:
        known = {student.id: student for student in gradebook.students}
        added = [student for student in new if student not in known]
        columns = {student: _columns(person, used) for student, person in new.items()}
        updated = [
            student
            for student, person in new.items()
            if student in known
            and (old.get(student) != person or _differs(known[student], columns[student]))
        ]
        others = sorted(known.keys() - everyone.keys())
        write_roster(folder, Roster(everyone.values()))
        for student in [*added, *updated]:
            gradebook.update_or_create_student(student, **columns[student])
    lines = [
        _line("added", added),
        _line("updated", updated),
        f"{len(new) - len(added) - len(updated)} unchanged",
        _line("emptied, as in the table", list(_emptied(old, new))),
        _line("in the gradebook, but not on the roster", others),
        _line(f"on the roster, but not in {table.name}", sorted(old.keys() - new.keys())),
        _line(f"column{'' if len(unused) == 1 else 's'} not used", unused),
        *(
            f"{student} was removed, so not added: run `python -m autograder remove {student} "
            "--undo`, then this command again"
            for student in left
        ),
    ]
    return "\n".join([*filter(None, lines), f"wrote {folder / ROSTER}"]), not left


def _emptied(old: Mapping[str, Person], new: Mapping[str, Person]) -> Iterator[str]:
    for student in old.keys() & new.keys():
        for name in COLUMNS:
            if getattr(old[student], name) and not getattr(new[student], name):
                yield f"{name} of {student}"


def _new_ids(old: Mapping[str, Person], new: Mapping[str, Person]) -> Iterator[str]:
    """What to do about people who have another id in the table than before."""
    for person in [new[student] for student in new if student not in old]:
        for before in old.values():
            same_number = bool(person.canvas_id) and person.canvas_id == before.canvas_id
            if same_number or person.ids & before.ids:
                command = f"python -m autograder rename {before.student} {person.student}"
                yield f"If {before.student} is now {person.student}, run `{command}` first"


def _columns(person: Person, used: Collection[str]) -> dict[str, str | None]:
    """nbgrader's columns of a student that the roster fills, or that the table empties."""
    names = {
        "first_name": "first_name",
        "last_name": "last_name",
        "email": "email",
        "canvas_id": "lms_user_id",
    }
    values = {name: getattr(person, name) for name in names}
    return {names[name]: value or None for name, value in values.items() if value or name in used}


def _differs(student: object, columns: Mapping[str, str | None]) -> bool:
    return any((getattr(student, name) or None) != value for name, value in columns.items())


def _line(what: str, names: list[str]) -> str:
    return f"{len(names)} {what}: {', '.join(names)}" if names else ""
