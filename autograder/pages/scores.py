"""What the gradebook knows of a lab: read in a few queries, however many students there are."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from nbgrader.api import (
    Assignment,
    BaseCell,
    Comment,
    Grade,
    Gradebook,
    Notebook,
    Student,
    SubmittedAssignment,
    SubmittedNotebook,
)
from sqlalchemy import select


@dataclass(frozen=True)
class Mark:
    """What one graded cell brought. Extra credit is in ``points``."""

    points: float
    max_points: float
    waits: bool  # for a person: the points are not the last word
    by_hand: bool
    extra_credit: float = 0.0


@dataclass(frozen=True)
class Scores:
    """One student's marks in one lab; without a submission all is empty."""

    student: str
    first_name: str = ""
    last_name: str = ""
    handed_in: bool = False
    submitted_at: datetime | None = None  # UTC
    due_at: datetime | None = None  # UTC, this student's extension included
    penalty: float = 0.0  # points taken off for being late
    max_points: float = 0.0  # of the lab
    marks: dict[str, Mark] = field(default_factory=dict)  # {grade id: ...}
    comments: dict[str, str] = field(default_factory=dict)  # {grade id of the answer: Markdown}

    @property
    def raw(self) -> float:
        return sum(mark.points for mark in self.marks.values())

    @property
    def total(self) -> float:
        return max(self.raw - self.penalty, 0.0)

    @property
    def waits(self) -> int:
        """How many cells a person has yet to grade."""
        return sum(mark.waits for mark in self.marks.values())


def read_scores(gradebook: Gradebook, lab: str, student: str | None = None) -> list[Scores]:
    """Of everybody in the gradebook, by id, or of one.

    Raises KeyError for a lab or student that the gradebook does not know.
    """
    db = gradebook.db
    assignment = db.execute(
        select(Assignment.id, Assignment.duedate, Assignment.max_score).where(
            Assignment.name == lab
        )
    ).one_or_none()
    if assignment is None:
        raise KeyError(lab)
    of_student = [] if student is None else [Student.id == student]
    students = db.execute(
        select(Student.id, Student.first_name, Student.last_name)
        .where(*of_student)
        .order_by(Student.id)
    ).all()
    if student is not None and not students:
        raise KeyError(student)
    of_lab = [SubmittedAssignment.assignment_id == assignment.id]
    if student is not None:
        of_lab.append(SubmittedAssignment.student_id == student)
    marks, comments = _marks(db, of_lab), _comments(db, of_lab)
    submissions = {
        row.student_id: row
        for row in db.execute(
            select(
                SubmittedAssignment.student_id,
                SubmittedAssignment.timestamp,
                SubmittedAssignment.extension,
                SubmittedAssignment.late_submission_penalty,
            ).where(*of_lab)
        )
    }
    read = []
    for row in students:
        submission = submissions.get(row.id)
        due_at = assignment.duedate
        if due_at is not None and submission is not None and submission.extension is not None:
            due_at += submission.extension
        read.append(
            Scores(
                student=row.id,
                first_name=row.first_name or "",
                last_name=row.last_name or "",
                handed_in=submission is not None,
                submitted_at=submission.timestamp if submission else None,
                due_at=due_at,
                penalty=(submission.late_submission_penalty or 0.0) if submission else 0.0,
                max_points=float(assignment.max_score or 0.0),
                marks=marks[row.id],
                comments=comments[row.id],
            )
        )
    return read


def _marks(db: Any, of_lab: list[Any]) -> dict[str, dict[str, Mark]]:
    query = (
        select(
            SubmittedAssignment.student_id,
            BaseCell.name,
            Grade.score,
            Grade.max_score,
            Grade.needs_manual_grade,
            Grade.manual_score,
            Grade.extra_credit,
        )
        .select_from(Grade)
        .join(BaseCell, BaseCell.id == Grade.cell_id)
        .join(SubmittedNotebook, SubmittedNotebook.id == Grade.notebook_id)
        .join(SubmittedAssignment, SubmittedAssignment.id == SubmittedNotebook.assignment_id)
        .where(*of_lab)
    )
    found: dict[str, dict[str, Mark]] = defaultdict(dict)
    for student, cell, score, most, waits, by_hand, extra in db.execute(query):
        found[student][cell] = Mark(
            float(score), float(most), bool(waits), by_hand is not None, float(extra or 0.0)
        )
    return found


def _comments(db: Any, of_lab: list[Any]) -> dict[str, dict[str, str]]:
    query = (
        select(SubmittedAssignment.student_id, BaseCell.name, Comment.comment)
        .select_from(Comment)
        .join(BaseCell, BaseCell.id == Comment.cell_id)
        .join(SubmittedNotebook, SubmittedNotebook.id == Comment.notebook_id)
        .join(SubmittedAssignment, SubmittedAssignment.id == SubmittedNotebook.assignment_id)
        .where(*of_lab)
    )
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for student, cell, comment in db.execute(query):
        if comment:
            found[student][cell] = str(comment)
    return found


def labs_of(gradebook: Gradebook) -> list[str]:
    """By name."""
    return [name for (name,) in gradebook.db.execute(select(Assignment.name).order_by("name"))]


def cells_of(gradebook: Gradebook, lab: str) -> list[str]:
    """Grade ids of a lab's graded cells, by name: the gradebook knows no other order."""
    query = (
        select(BaseCell.name)
        .join(Notebook, Notebook.id == BaseCell.notebook_id)
        .join(Assignment, Assignment.id == Notebook.assignment_id)
        .where(Assignment.name == lab, BaseCell.type.in_(("GradeCell", "TaskCell")))
        .order_by(BaseCell.name)
    )
    return [name for (name,) in gradebook.db.execute(query)]
