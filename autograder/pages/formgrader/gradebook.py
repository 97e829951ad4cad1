"""nbgrader's gradebook, with a single pass over the grades for each of its two longest lists.

nbgrader joins seven subqueries, each over all labs; on PostgreSQL, one of them scans all grades
once per grade. Here, each grade of the lab is read once.

Scores are those of the reports (pages/scores.py): after late penalties, and without answers that
are not graded yet.
"""

from __future__ import annotations

from collections import defaultdict
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
from sqlalchemy import Boolean, ColumnElement, and_, case, cast, func, select
from sqlalchemy.orm import scoped_session, sessionmaker

from autograder.pages.scores import GRADED_SCORE, read_points

_cell, _task = GradeCell.__table__, TaskCell.__table__
# {nbgrader's name: (which grades, maximum points of a grade)}
_KINDS = {
    "code": (_cell.c.cell_type == "code", _cell.c.max_score),
    "written": (_cell.c.cell_type == "markdown", _cell.c.max_score),
    "task": (_task.c.cell_type == "markdown", _task.c.max_score),
}
_FAILED = and_(_cell.c.cell_type == "code", Grade.auto_score < _cell.c.max_score)


def _sum(what: Any, where: ColumnElement[bool]) -> ColumnElement[float]:
    return func.sum(case((where, what), else_=0.0))


def _any(where: Any) -> ColumnElement[bool]:
    return cast(func.max(case((where, 1), else_=0)), Boolean)


_SUMS: dict[str, Any] = {
    f"{prefix}{kind}_score": _sum(what, which)
    for kind, (which, most) in _KINDS.items()
    for prefix, what in (("", GRADED_SCORE), ("max_", most))
}
_SUMS |= {
    f"{prefix}score": sum(_SUMS[f"{prefix}{kind}_score"] for kind in _KINDS)
    for prefix in ("", "max_")
}


class ClassGradebook(Gradebook):
    """Like nbgrader's gradebook, with results in any order and each ``late_penalty``."""

    def new_session(self) -> ClassGradebook:
        """Another session with the same database, which does not check its tables again."""
        other = ClassGradebook.__new__(ClassGradebook)
        other.engine = self.engine
        other.db = scoped_session(sessionmaker(autoflush=True, bind=self.engine, future=True))
        other.course_id, other.authenticator = self.course_id, self.authenticator
        return other

    def submission_dicts(self, assignment_id: str) -> list[dict[str, Any]]:
        of = Assignment.name == assignment_id
        return [_after_penalty(row) for row in self._read_submissions(of)]

    def submission_dict(self, assignment_id: str, student: str) -> dict[str, Any] | None:
        """One student's row of ``submission_dicts``, if there is one."""
        of = and_(Assignment.name == assignment_id, Student.id == student)
        return next(map(_after_penalty, self._read_submissions(of)), None)

    def totals(self, student: str | None = None) -> defaultdict[str, float]:
        """{student: total points in all labs}, 0 without a submission.

        ``student``: only this student's.
        """
        totals: defaultdict[str, float] = defaultdict(float)
        for points in read_points(self, student):
            totals[points.student] += points.total
        return totals

    def notebook_submission_dicts(
        self, notebook_id: str, assignment_id: str, student: str | None = None
    ) -> list[dict[str, Any]]:
        """``student``: only this student's."""
        about = {
            "flagged": SubmittedNotebook.flagged,
            "failed_tests": _any(_FAILED),
            "late_penalty": SubmittedNotebook.late_submission_penalty,
        }
        of = and_(Assignment.name == assignment_id, Notebook.name == notebook_id)
        if student is not None:
            of = and_(of, Student.id == student)
        return [_after_penalty(row) for row in self._read(SubmittedNotebook, Notebook, about, of)]

    def _read_submissions(self, where: ColumnElement[bool]) -> list[dict[str, Any]]:
        about = {
            "timestamp": SubmittedAssignment.timestamp,
            "late_penalty": SubmittedAssignment.late_submission_penalty,
        }
        return self._read(SubmittedAssignment, Assignment, about, where)

    def _read(
        self, submitted: Any, released: Any, about: dict[str, Any], where: ColumnElement[bool]
    ) -> list[dict[str, Any]]:
        """Read submissions that have a grade, like nbgrader's own lists."""
        columns = {
            "id": submitted.id,
            "name": released.name,
            **about,
            "student": Student.id,
            "first_name": Student.first_name,
            "last_name": Student.last_name,
            **_SUMS,
            "needs_manual_grade": _any(Grade.needs_manual_grade),
        }
        query = (
            select(*(column.label(name) for name, column in columns.items()))
            .select_from(SubmittedAssignment)
            .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
            .join(Student, Student.id == SubmittedAssignment.student_id)
            .join(SubmittedNotebook, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
            .join(Notebook, Notebook.id == SubmittedNotebook.notebook_id)
            .join(Grade, Grade.notebook_id == SubmittedNotebook.id)
            .outerjoin(_cell, _cell.c.id == Grade.cell_id)
            .outerjoin(_task, _task.c.id == Grade.cell_id)
            .where(where)
            .group_by(submitted.id, released.id, Student.id)
        )
        return [dict(row) for row in self.db.execute(query).mappings()]


def _after_penalty(row: dict[str, Any]) -> dict[str, Any]:
    penalty = row["late_penalty"] or 0.0
    return {**row, "late_penalty": penalty, "score": max(row["score"] - penalty, 0.0)}
