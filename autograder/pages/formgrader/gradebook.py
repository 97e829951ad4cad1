"""nbgrader's gradebook, with the two questions that its longest lists ask put in one pass.

nbgrader joins seven subqueries, each over all labs; on PostgreSQL one of them goes through all
grades once for each grade. Here each grade of the lab is read once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nbgrader.api import (
    Assignment,
    Grade,
    Gradebook,
    GradeCell,
    Notebook,
    Student,
    SubmittedAssignment,
    SubmittedNotebook,
    TaskCell,
)
from sqlalchemy import ColumnElement, and_, case, func
from sqlalchemy.orm import Query, scoped_session, sessionmaker

_cell, _task = GradeCell.__table__, TaskCell.__table__
# {nbgrader's name: (which grades, the most points of one)}
_KINDS = {
    "code": (_cell.c.cell_type == "code", _cell.c.max_score),
    "written": (_cell.c.cell_type == "markdown", _cell.c.max_score),
    "task": (_task.c.cell_type == "markdown", _task.c.max_score),
}
_FAILED = and_(_cell.c.cell_type == "code", Grade.auto_score < _cell.c.max_score)


def _sum(what: Any, where: ColumnElement[bool]) -> ColumnElement[float]:
    return func.sum(case((where, what), else_=0.0))


def _any(where: Any) -> ColumnElement[int]:
    return func.max(case((where, 1), else_=0))


_SUMS = {
    name: column
    for kind, (which, most) in _KINDS.items()
    for name, column in (
        (f"{kind}_score", _sum(Grade.score, which)),
        (f"max_{kind}_score", _sum(most, which)),
    )
}


class ClassGradebook(Gradebook):
    """The same answers as nbgrader's own, in any order."""

    def again(self) -> ClassGradebook:
        """Another session with the same database, whose tables were seen to once."""
        other = ClassGradebook.__new__(ClassGradebook)
        other.engine = self.engine
        other.db = scoped_session(sessionmaker(autoflush=True, bind=self.engine, future=True))
        other.course_id, other.authenticator = self.course_id, self.authenticator
        return other

    def submission_dicts(self, assignment_id: str) -> list[dict[str, Any]]:
        about = {
            "id": SubmittedAssignment.id,
            "name": Assignment.name,
            "timestamp": SubmittedAssignment.timestamp,
        }
        found = _of_a_lab(self._asked(about), assignment_id)
        found = found.group_by(SubmittedAssignment.id, Assignment.id, Student.id)
        return [_with_totals(row._mapping, "needs_manual_grade") for row in found]

    def notebook_submission_dicts(
        self, notebook_id: str, assignment_id: str
    ) -> list[dict[str, Any]]:
        about = {
            "id": SubmittedNotebook.id,
            "name": Notebook.name,
            "flagged": SubmittedNotebook.flagged,
            "failed_tests": _any(_FAILED),
        }
        found = _of_a_lab(self._asked(about), assignment_id).filter(Notebook.name == notebook_id)
        found = found.group_by(SubmittedNotebook.id, Notebook.id, Student.id)
        return [_with_totals(row._mapping, "needs_manual_grade", "failed_tests") for row in found]

    def _asked(self, about: dict[str, Any]) -> Query[Any]:
        columns = {
            **about,
            "student": Student.id,
            "first_name": Student.first_name,
            "last_name": Student.last_name,
            **_SUMS,
            "needs_manual_grade": _any(Grade.needs_manual_grade),
        }
        return self.db.query(*(column.label(name) for name, column in columns.items()))


def _of_a_lab(query: Query[Any], lab: str) -> Query[Any]:
    """Submissions without a grade are in no list of nbgrader's either."""
    return (
        query.select_from(SubmittedAssignment)
        .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
        .join(Student, Student.id == SubmittedAssignment.student_id)
        .join(SubmittedNotebook, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
        .join(Notebook, Notebook.id == SubmittedNotebook.notebook_id)
        .join(Grade, Grade.notebook_id == SubmittedNotebook.id)
        .outerjoin(_cell, _cell.c.id == Grade.cell_id)
        .outerjoin(_task, _task.c.id == Grade.cell_id)
        .filter(Assignment.name == lab)
    )


def _with_totals(row: Any, *booleans: str) -> dict[str, Any]:
    flags = {name: bool(row[name]) for name in booleans}
    return {**row, **flags, "score": _total(row, ""), "max_score": _total(row, "max_")}


def _total(row: Any, prefix: str) -> float:
    parts: Iterable[float] = (row[f"{prefix}{kind}_score"] for kind in _KINDS)
    return sum(parts)
