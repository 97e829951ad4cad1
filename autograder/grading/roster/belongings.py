"""Everything that the course has of one student, outside of the gradebook."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from nbgrader.coursedir import CourseDirectory

from autograder.grading.csv_tables import Table, read_table, write_atomically
from autograder.grading.pool.journal import Journal
from autograder.grading.roster.class_list import column_of
from autograder.grading.roster.groups import GROUPS
from autograder.grading.roster.roster import ROSTER, NotFound, Person, Roster, same_id
from autograder.grading.submission.folders import grading_folder, records_folder

TABLES = (ROSTER, GROUPS, "extensions.csv")
EARLIER = "earlier"
FOLDERS = ("submitted", "autograded", "feedback", EARLIER)


class Belongings:
    def __init__(self, course: CourseDirectory, person: Person) -> None:
        """``person``: with the ids by which tables may name them."""
        self.course, self.person = course, person
        self._grading = grading_folder(course)

    def labs(self) -> dict[str, list[Path]]:
        """{"submitted" or another kind: the folders or records of the labs}"""
        student = self.person.student
        found = {kind: sorted(self.place(kind).glob("*")) for kind in FOLDERS}
        records = records_folder(self.course)
        for kind, pattern in (("records", "*"), ("regraded", "*/.regraded")):
            folders = sorted(records.glob(pattern))
            paths = [folder / f"{student}.json" for folder in folders]
            found[kind] = [path for path in paths if path.exists()]
        return found

    def place(self, kind: str) -> Path:
        """The student's folder of this kind, which may not exist."""
        if kind == EARLIER:
            return self._grading / EARLIER / self.person.student
        directory = getattr(self.course, f"{kind}_directory")
        return Path(self.course.root, directory, self.person.student)

    def rows(self) -> dict[str, list[int]]:
        """{name of a table: indices of the student's rows}"""
        found = {}
        for name in TABLES:
            if table := self._table(name):
                at = [i for i, row in enumerate(table.rows) if self._is_meant(table, row)]
                found[name] = at
        return {name: at for name, at in found.items() if at}

    def named_rows(self, name: str) -> list[list[str]]:
        """The table's header and the student's rows."""
        table = self._table(name)
        return [table.header, *(table.rows[i] for i in self.rows().get(name, ()))] if table else []

    def replace_rows(self, name: str, new_id: str | None) -> None:
        """Write the table with another id in the student's rows; without them if it is None."""
        table = self._table(name)
        if table is None:
            return
        at = self.rows().get(name, [])
        columns = [i for i, heading in enumerate(table.header) if column_of(heading) == "student"]
        rows = []
        for i, row in enumerate(table.rows):
            if i in at and new_id is None:
                continue
            rows.append(
                [
                    new_id if new_id and i in at and j in columns and self._is_id(cell) else cell
                    for j, cell in enumerate(row)
                ]
            )
        self._write(name, replace(table, rows=rows))

    def add_rows(self, name: str, old: list[list[str]]) -> None:
        """Adds what `named_rows` returned, unless the table has it."""
        table = self._table(name)
        header, *rows = old
        if table is None:
            table = Table(header, [], [])
        for row in rows:
            named = dict(zip(header, row, strict=False))
            new = [named.get(heading, "") for heading in table.header]
            if new not in table.rows:
                table.rows.append(new)
        self._write(name, table)

    def _table(self, name: str) -> Table | None:
        path = self._grading / name
        return read_table(path) if path.exists() else None

    def _write(self, name: str, table: Table) -> None:
        write_atomically(self._grading / name, table.text().encode())

    def _is_meant(self, table: Table, row: list[str]) -> bool:
        columns = [column_of(heading) for heading in table.header]
        cells = dict(zip(columns, row, strict=False))
        if cells.get("student"):
            return self._is_id(cells["student"])
        # An id tells who is meant if there are namesakes.
        ids = [cells.get(name) for name in ("email", "canvas_login", "gradescope_email")]
        if any(ids) or cells.get("canvas_id"):
            by_number = cells.get("canvas_id") == self.person.canvas_id != ""
            return by_number or any(same_id(each) in self.person.ids for each in ids if each)
        try:
            return bool(Roster([self.person]).named_in(cells))
        except NotFound:
            return False

    def _is_id(self, cell: str) -> bool:
        """Exactly the student's id, or another of their ids: Grace and grace are two students."""
        return cell.strip() == self.person.student or (
            same_id(cell) in self.person.ids - {same_id(self.person.student)}
        )


@contextmanager
def nobody_grades(course: CourseDirectory) -> Iterator[None]:
    """Raises pool.journal.Locked while a lab is graded."""
    records = records_folder(course)
    with ExitStack() as locks:
        for folder in sorted(path for path in records.glob("[!.]*") if path.is_dir()):
            locks.enter_context(Journal(records, folder.name).locked())
        yield
