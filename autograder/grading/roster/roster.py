"""The roster: the people who take the course, and the names that platforms give them.

nbgrader's gradebook has columns for names, e-mail and one platform id. ``grading/roster.csv`` adds
the other ids, in a file that can be corrected with an editor.
"""

from __future__ import annotations

import csv
import io
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from autograder.grading.csv_tables import columns, read_table, write_atomically

ROSTER = "roster.csv"  # in grading/


class NotFound(Exception):
    """Why a platform's name cannot be mapped to one student."""


class Namesakes(NotFound):
    """Several students have this name, and no id tells them apart."""


@dataclass(frozen=True)
class Person:
    student: str  # the id in the gradebook, and the name of the folder in grading/submitted
    first_name: str = ""
    last_name: str = ""
    email: str = ""
    canvas_id: str = ""  # a number, which Canvas puts into file names
    canvas_login: str = ""
    moodle_name: str = ""  # where Moodle does not show the first and last name
    gradescope_email: str = ""  # where it is not ``email``

    @property
    def ids(self) -> set[str]:
        """What identifies this person, in the form that ``same_id`` returns."""
        given = (self.student, self.email, self.canvas_login, self.gradescope_email)
        return {same_id(text) for text in given if text}

    @property
    def names(self) -> set[str]:
        first, last = self.first_name, self.last_name
        given = (f"{first} {last}", f"{last} {first}", self.moodle_name)
        return {same_name(text) for text in given} - {""}

    def may_be_called(self, name: str) -> bool:
        """Also with a middle name, and if no name is known."""
        shown, parts = same_name(name), [same_name(self.first_name), same_name(self.last_name)]
        known = self.names
        return not known or shown in known or (all(parts) and all(part in shown for part in parts))


COLUMNS = tuple(field.name for field in fields(Person))


def same_id(text: str) -> str:
    """Equal for two spellings of one id: upper case, composed or decomposed accents."""
    return unicodedata.normalize("NFKC", text).casefold().strip()


def same_name(text: str) -> str:
    """Equal for two spellings of one name: platforms leave out spaces, hyphens and accents."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    return "".join(character for character in plain if character.isalnum())


def spelled_differently(submitted: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """{name of a folder: why it cannot be used}: Grace if somebody is called grace."""
    known = set(known)
    by_id = {same_id(student): student for student in sorted(known)}
    found = {}
    for name in submitted:
        other = by_id.setdefault(same_id(name), name)
        if other != name and name not in known:
            found[name] = (
                f"differs from {other} only in its spelling: if they are one student, run "
                f"`python -m autograder rename {name} {other}`"
            )
    return found


class Roster:
    def __init__(self, people: Iterable[Person]) -> None:
        self.people = {person.student: person for person in people}
        self._found: dict[tuple[str, str], list[str]] = defaultdict(list)
        for person in self.people.values():
            keys = {("id", text) for text in person.ids} | {("name", text) for text in person.names}
            for key in keys | {("canvas_id", person.canvas_id)}:
                self._found[key].append(person.student)

    def has_name(self, text: str) -> bool:
        """Whether somebody has this id or name."""
        return bool(
            self._found.get(("id", same_id(text))) or self._found.get(("name", same_name(text)))
        )

    def find(self, *, canvas_id: str = "", ids: Iterable[str] = (), name: str = "") -> str:
        """The student with this Canvas id, else with one of these ids, else with this name.

        Raises NotFound.
        """
        ids = list(ids)
        keys = [("canvas_id", canvas_id), *(("id", same_id(text)) for text in ids)]
        for key in (*keys, ("name", same_name(name))):
            students = self._found.get(key, []) if key[1] else []
            if len(students) == 1:
                return students[0]
            if students:
                first, *_ = sorted(students)
                raise Namesakes(
                    f"could be {' or '.join(sorted(students))}: add their canvas_id to the roster, "
                    f"or move the file to a folder named after the student, {first}/, and collect "
                    "the folder around it"
                )
        shown = ", ".join(dict.fromkeys(text for text in (name, *ids, canvas_id) if text))
        raise NotFound(f"{shown} is not on the roster")

    def named_in(self, cells: Mapping[str, str]) -> str:
        """The student whom a row of a table names. ``cells``: {our column, or "name": text}

        Raises NotFound.
        """
        given = {key: cells.get(key, "") for key in ("name", *COLUMNS)}
        ids = [given[key] for key in ("student", "email", "canvas_login", "gradescope_email")]
        name = given["name"] or f"{given['first_name']} {given['last_name']}".strip()
        name = name or given["moodle_name"]
        if not any([*ids, name, given["canvas_id"]]):
            raise NotFound("the student is missing")
        return self.find(canvas_id=given["canvas_id"], ids=filter(None, ids), name=name)


def read_roster(folder: Path) -> Roster | None:
    """``folder``: grading/. None if there is no roster yet. Raises BadTable."""
    path = folder / ROSTER
    if not path.exists():
        return None
    table = read_table(path)
    index = columns(table.header, ["student"], path)
    ours = {name: index[name] for name in COLUMNS if name in index}
    people = [
        Person(**{"student": "", **{name: row[i] for name, i in ours.items() if i < len(row)}})
        for row in table.rows
    ]
    return Roster(person for person in people if person.student)


def write_roster(folder: Path, roster: Roster) -> None:
    """Replaces the file in one step."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(roster.people[student]) for student in sorted(roster.people))
    write_atomically(folder / ROSTER, text.getvalue().encode())
