"""grading/groups.csv: who hands in together. Platforms name such a hand-in after the group."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from autograder.grading.csv_tables import BadTable, read_table
from autograder.grading.roster.class_list import column_of
from autograder.grading.roster.roster import COLUMNS, NotFound, Roster, same_name

GROUPS = "groups.csv"  # in grading/
# {a heading in lower case: our column}, also of Canvas's export of groups
ALIASES = {
    "group": "group", "group_name": "group", "groupname": "group", "groups": "group", "lab": "lab",
}  # fmt: skip
NO_COLUMNS = (
    "{path}, line 1: it needs the columns group and student, one row for each member (and lab, if "
    "groups change), but has: {has}"
)


class Groups:
    """The members of each group for one lab."""

    def __init__(
        self, members: dict[str, list[str]], named_lab: Collection[str] = frozenset()
    ) -> None:
        """``members``: {group: students}. ``named_lab``: of them, those whose row has the lab."""
        self._members = {same_name(group): students for group, students in members.items()}
        self.named_lab = named_lab

    def __bool__(self) -> bool:
        return bool(self._members)

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
    spelled: dict[str, str] = {}
    placed: dict[str, tuple[str, int, bool]] = {}  # {student: (group, line, whether it has a lab)}
    wrong = []
    for line, row in zip(table.lines, table.rows, strict=True):
        cells = {name: cell.strip() for name, cell in zip(names, row, strict=False)}
        try:
            if not _counts(cells, lab, labs):
                continue
            group, student = _member(cells, roster)
            group = spelled.setdefault(same_name(group), group)
            has_lab = bool(cells.get("lab"))
            other, first, other_has_lab = placed.get(student, ("", 0, not has_lab))
            if has_lab == other_has_lab:
                where = "this group" if other == group else f"the group {other!r}"
                raise ValueError(f"{student} is in {where} already, in line {first}")
            if has_lab or not other:
                placed[student] = group, line, has_lab
        except (ValueError, NotFound) as error:
            quoted = table.delimiter.join(row)
            wrong.append(f"{path}, line {line} ({quoted}): {error}")
    if wrong:
        raise BadTable("\n".join([*wrong, "Correct the file and run the command again."]))
    members = defaultdict(list)
    for student, (group, *_) in placed.items():
        members[group].append(student)
    return Groups(members, {student for student, (*_, has_lab) in placed.items() if has_lab})


def names_after_groups(
    names: Collection[str],
    is_student: Callable[[str], object],
    is_group: Callable[[str], object] = lambda _: False,
) -> dict[str, str]:
    """{"Blue team-Ada Lovelace": "Ada Lovelace"}, as Moodle writes names; the group if it is known
    and the student is not.

    Two ``names`` show what is an unknown group: Anna-Lena Meyer is not Lena Meyer.
    """
    unknown = [name for name in names if not (is_student(name) or is_group(name))]
    splits = [
        (name, name[:at], name[at + 1 :])
        for name in unknown
        for at, character in enumerate(name)
        if character == "-"
    ]
    members = Counter(group for _, group, student in splits if is_student(student))
    found = {name: group for name, group, _ in splits if is_group(group)}
    for name, group, student in splits:
        if is_student(student) and (is_group(group) or members[group] > 1):
            found[name] = student
    return found


def _counts(cells: dict[str, str], lab: str, labs: Iterable[str]) -> bool:
    """Whether this row is about ``lab``: a row without a lab is about all in which the student has
    no other."""
    asked = cells.get("lab", "")
    if asked and asked not in labs:
        raise ValueError(f"there is no lab {asked!r}: choose from {', '.join(labs)}")
    # A platform's export also lists those who are in no group.
    return asked in ("", lab) and bool(cells.get("group"))


def _member(cells: dict[str, str], roster: Roster) -> tuple[str, str]:
    group = cells["group"]
    student = roster.named_in(cells)
    if not same_name(group):
        raise ValueError(f"the group's name {group!r} has no letters or digits")
    if roster.has_name(group):
        raise ValueError(f"{group!r} is also the name of a student: rename the group")
    return group, student
