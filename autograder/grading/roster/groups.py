"""grading/groups.csv: who hands in together. Platforms name such a hand-in after the group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path

from autograder.grading.csv_tables import BadTable, read_table
from autograder.grading.roster.class_list import column_of
from autograder.grading.roster.roster import COLUMNS, NotFound, Roster, same_name

GROUPS = "groups.csv"  # in grading/
# {a heading in lower case: our column}, also of Canvas's export of groups
ALIASES = {
    "group": "group", "group_name": "group", "groupname": "group", "groups": "group", "lab": "lab",
    "user_id": "student", "login_id": "canvas_login", "canvas_user_id": "canvas_id",
}  # fmt: skip
NO_COLUMNS = (
    "{path}, line 1: it needs the columns group and student, one row for each member (and lab, if "
    "groups change), but has: {has}"
)


class Groups:
    """The members of each group for one lab."""

    def __init__(self, members: dict[str, list[str]]) -> None:
        """``members``: {group: students}"""
        self._members = {same_name(group): students for group, students in members.items()}

    def members(self, name: str) -> list[str]:
        """[] if no group has this name."""
        return self._members.get(same_name(name), []) if name else []

    def group_of(self, student: str) -> str:
        """ "" for a student in no group."""
        return next((name for name, who in self._members.items() if student in who), "")


def read_groups(folder: Path, roster: Roster | None, lab: str, labs: Collection[str]) -> Groups:
    """``folder``: grading/. No groups without a file. Raises BadTable with every bad row."""
    path = folder / GROUPS
    if not path.exists():
        return Groups({})
    if roster is None:
        raise BadTable(f"{path} needs a roster: run `python -m autograder roster students.csv`")
    table = read_table(path)
    plain = [heading.strip().lower().replace(" ", "_") for heading in table.header]
    names = [ALIASES.get(each) or column_of(each) for each in plain]
    if "group" not in names or not {"student", "name", *COLUMNS} & set(names):
        raise BadTable(NO_COLUMNS.format(path=path, has=", ".join(table.header)))
    groups: dict[str, list[str]] = defaultdict(list)
    spelled: dict[str, str] = {}
    placed: dict[str, tuple[str, int]] = {}
    wrong = []
    for line, row in zip(table.lines, table.rows, strict=True):
        cells = {name: cell.strip() for name, cell in zip(names, row, strict=False)}
        try:
            if not _counts(cells, lab, labs):
                continue
            group, student = _member(cells, roster)
            group = spelled.setdefault(same_name(group), group)
            if student in placed:
                other, first = placed[student]
                where = "this group" if other == group else f"the group {other!r}"
                raise ValueError(f"{student} is in {where} already, in line {first}")
            placed[student] = group, line
            groups[group].append(student)
        except (ValueError, NotFound) as error:
            quoted = table.delimiter.join(row)
            wrong.append(f"{path}, line {line} ({quoted}): {error}")
    if wrong:
        raise BadTable("\n".join([*wrong, "Correct the file and run the command again."]))
    return Groups(groups)


def _counts(cells: dict[str, str], lab: str, labs: Iterable[str]) -> bool:
    """Whether this row is about ``lab``: a row without a lab is about all."""
    asked = cells.get("lab", "")
    if asked and asked not in labs:
        raise ValueError(f"there is no lab {asked!r}: choose from {', '.join(labs)}")
    # A platform's export also lists those who are in no group.
    return asked in ("", lab) and bool(cells.get("group"))


def _member(cells: dict[str, str], roster: Roster) -> tuple[str, str]:
    group = cells["group"]
    given = {key: cells.get(key, "") for key in ("name", *COLUMNS)}
    ids = [given[key] for key in ("student", "email", "canvas_login", "gradescope_email")]
    name = given["name"] or f"{given['first_name']} {given['last_name']}".strip()
    if not any([*ids, name, given["canvas_id"]]):
        raise ValueError("the student is missing")
    student = roster.find(canvas_id=given["canvas_id"], ids=filter(None, ids), name=name)
    if not same_name(group):
        raise ValueError(f"the group's name {group!r} has no letters or digits")
    if roster.has_name(group):
        raise ValueError(f"{group!r} is also the name of a student: rename the group")
    return group, student
