"""Adds the people in a table to nbgrader's gradebook and to the roster. Deletes none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from nbgrader.coursedir import CourseDirectory

from autograder.grading.csv_tables import BadTable
from autograder.grading.gradebook.database import opened, prepare
from autograder.grading.nbgrader_app import nbgrader_app
from autograder.grading.roster.class_list import merged, read_class_list, shared_ids
from autograder.grading.roster.roster import (
    ROSTER,
    Person,
    Roster,
    read_roster,
    write_roster,
)
from autograder.grading.submission.folders import grading_folder


def enroll(table: Path) -> str:
    """What was changed, for the terminal. An empty cell keeps what was there before.

    Raises BadTable or GradebookError before anything is changed. If it is interrupted, run it
    again: the result is the same.
    """
    course = CourseDirectory(parent=nbgrader_app())
    folder = grading_folder(course)
    given, unused = read_class_list(table)
    before = read_roster(folder)
    old = before.people if before else {}
    new = {p.student: merged(old.get(p.student, p), p) for p in given}
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
        updated = [
            student
            for student, person in new.items()
            if student in known and (old.get(student) != person or _differs(known[student], person))
        ]
        others = sorted(known.keys() - everyone.keys())
        write_roster(folder, Roster(everyone.values()))
        for student in [*added, *updated]:
            gradebook.update_or_create_student(student, **_columns(new[student]))
    lines = [
        _line("added", added),
        _line("updated", updated),
        f"{len(new) - len(added) - len(updated)} unchanged",
        _line("in the gradebook, but not on the roster", others),
        _line(f"on the roster, but not in {table.name}", sorted(old.keys() - new.keys())),
        _line(f"column{'' if len(unused) == 1 else 's'} not used", unused),
    ]
    return "\n".join([*filter(None, lines), f"wrote {folder / ROSTER}"])


def _new_ids(old: Mapping[str, Person], new: Mapping[str, Person]) -> Iterator[str]:
    """What to do about people who have another id in the table than before."""
    for person in [new[student] for student in new if student not in old]:
        for before in old.values():
            same_number = bool(person.canvas_id) and person.canvas_id == before.canvas_id
            if same_number or person.ids & before.ids:
                command = f"python -m autograder rename {before.student} {person.student}"
                yield f"If {before.student} is now {person.student}, run `{command}` first"


def _columns(person: Person) -> dict[str, str]:
    """nbgrader's columns of a student that the roster fills."""
    values = {
        "first_name": person.first_name,
        "last_name": person.last_name,
        "email": person.email,
        "lms_user_id": person.canvas_id,
    }
    return {name: value for name, value in values.items() if value}


def _differs(student: object, person: Person) -> bool:
    return any(getattr(student, name) != value for name, value in _columns(person).items())


def _line(what: str, names: list[str]) -> str:
    return f"{len(names)} {what}: {', '.join(names)}" if names else ""
