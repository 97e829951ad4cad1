"""Matches students in the gradebook with people on a learning platform."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbgrader.api import Gradebook, Student
from sqlalchemy import select

from autograder.grading.roster.class_list import merged
from autograder.grading.roster.roster import Person, read_roster, same_id, same_name


@dataclass(frozen=True)
class Keys:
    """What identifies a person, normalized for comparison."""

    identifiers: frozenset[str]
    names: frozenset[str]  # always whole names: a last name alone may be another person's


def keys(identifiers: Iterable[str], *name: str) -> Keys:
    """``name``: one whole name, or first and last name in either order."""
    parts = [same_name(part) for part in name if part]
    return Keys(
        frozenset(same_id(text) for text in identifiers if text.strip()),
        frozenset({"".join(parts), "".join(parts[::-1])} - {""}),
    )


def keys_of(person: Person) -> Keys:
    # Files in Canvas's downloads are named lovelaceada_…; the student's folder may be, too.
    names = person.names | {same_name(person.student)}
    identifiers = person.ids | ({same_id(person.canvas_id)} - {""})
    return Keys(frozenset(identifiers), frozenset(names))


def read_people(gradebook: Gradebook, folder: Path) -> list[Person]:
    """Everyone in the gradebook, sorted by id, with additions and corrections from the roster.

    ``folder``: grading/. Raises BadTable.
    """
    query = select(
        Student.id, Student.first_name, Student.last_name, Student.email, Student.lms_user_id
    ).order_by(Student.id)
    found = [Person(*(text or "" for text in row)) for row in gradebook.db.execute(query)]
    roster = read_roster(folder)
    on_roster = roster.people if roster else {}
    return [merged(person, on_roster.get(person.student, person)) for person in found]


def match(people: Sequence[Person], rows: Sequence[Keys]) -> dict[str, int]:
    """{student: index of their row}.

    Matches by identifiers (user name, e-mail address, number), then by names, regardless of order,
    accents and case. Omits people who match several rows, or whose row matches several people.
    """
    found: dict[str, int] = {}
    for kind in ("identifiers", "names"):
        free = {i: getattr(row, kind) for i, row in enumerate(rows) if i not in found.values()}
        fits = {
            person.student: [
                i for i, of_row in free.items() if of_row & getattr(keys_of(person), kind)
            ]
            for person in people
            if person.student not in found
        }
        claims = Counter(itertools.chain.from_iterable(fits.values()))
        found |= {
            student: indices[0]
            for student, indices in fits.items()
            if len(indices) == 1 and claims[indices[0]] == 1
        }
    return found
