"""Reads a lab's scores from the gradebook, with a few queries for any number of students."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from datetime import datetime

from nbgrader.api import (
    Assignment,
    BaseCell,
    Comment,
    Grade,
    Gradebook,
    MissingEntry,
    Notebook,
    Student,
    SubmittedAssignment,
    SubmittedNotebook,
)
from sqlalchemy import and_, case, func, select

from autograder.grading.gradebook.database import by_cell

# A mark for an earlier submission does not count until someone confirms it.
GRADED_SCORE = case((Grade.needs_manual_grade, 0.0), else_=Grade.score)


@dataclass(frozen=True)
class Mark:
    """The points for one graded cell, including extra credit."""

    points: float
    max_points: float
    is_pending: bool  # waiting for manual grading: the points are not final
    by_hand: bool

    @property
    def outcome(self) -> str:
        if self.is_pending:
            return "pending"
        if self.points >= self.max_points:
            return "full"
        return "part" if self.points > 0 else "none"


@dataclass(frozen=True)
class Scores:
    """One student's marks in one lab; empty without a submission."""

    student: str
    first_name: str = ""
    last_name: str = ""
    has_submission: bool = False
    submitted_at: datetime | None = None  # UTC
    due_at: datetime | None = None  # UTC, with this student's extension
    penalty: float = 0.0  # points deducted for being late
    max_points: float = 0.0  # of the lab
    marks: dict[str, Mark] = field(default_factory=dict)  # {grade id: ...}
    comments: dict[str, str] = field(default_factory=dict)  # {grade id of the answer: Markdown}

    @property
    def total(self) -> float:
        """Points so far, excluding answers that are not graded yet, after the late penalty."""
        points = sum(mark.points for mark in self.marks.values() if not mark.is_pending)
        return max(points - self.penalty, 0.0)

    @property
    def max_so_far(self) -> float:
        """The maximum of ``total``: the points of the answers that are graded."""
        return sum(mark.max_points for mark in self.marks.values() if not mark.is_pending)

    @property
    def pending(self) -> int:
        """How many cells are waiting for manual grading."""
        return sum(mark.is_pending for mark in self.marks.values())


def digest(scores: Scores, record_key: str) -> str:
    """A digest of everything that a feedback page shows of a grade. ``record_key``: of the grader's
    record, "" without one."""
    ordered = [sorted(scores.marks.items()), sorted(scores.comments.items())]
    shown = repr((replace(scores, marks={}, comments={}), ordered, record_key))
    return hashlib.sha256(shown.encode()).hexdigest()


def read_scores(gradebook: Gradebook, lab: str, student: str | None = None) -> list[Scores]:
    """Scores of all students in the gradebook, sorted by id, or of one student.

    Raises MissingEntry for a lab or student that is not in the gradebook.
    """
    assignment = gradebook.find_assignment(lab)
    due_at, max_points = assignment.duedate, float(assignment.max_score or 0.0)
    of_lab = and_(
        SubmittedAssignment.student_id == Student.id,
        SubmittedAssignment.assignment_id == assignment.id,
    )
    query = (
        select(
            Student.id,
            Student.first_name,
            Student.last_name,
            SubmittedAssignment.id.label("submission"),
            SubmittedAssignment.timestamp,
            SubmittedAssignment.extension,
            SubmittedAssignment.late_submission_penalty.label("penalty"),
        )
        .outerjoin(SubmittedAssignment, of_lab)
        .order_by(Student.id)
    )
    rows = gradebook.db.execute(query if student is None else query.where(Student.id == student))
    graded = (Grade.score, Grade.max_score, Grade.needs_manual_grade, Grade.manual_score)
    marks = by_cell(gradebook, lab, graded, student)
    comments = by_cell(gradebook, lab, (Comment.comment,), student)
    found = [
        Scores(
            student=row.id,
            first_name=row.first_name or "",
            last_name=row.last_name or "",
            has_submission=row.submission is not None,
            submitted_at=row.timestamp,
            due_at=due_at + row.extension if due_at and row.extension else due_at,
            penalty=row.penalty or 0.0,
            max_points=max_points,
            marks={
                cell: Mark(float(score), float(maximum), bool(pending), by_hand is not None)
                for cell, (score, maximum, pending, by_hand) in marks[row.id].items()
            },
            comments={cell: text for cell, (text,) in comments[row.id].items() if text},
        )
        for row in rows
    ]
    if student is not None and not found:
        raise MissingEntry(student)
    return found


@dataclass(frozen=True)
class Points:
    """Like ``Scores`` for one submission, but without the individual marks."""

    submission: str  # its id in the database
    student: str
    raw: float  # before the late penalty
    penalty: float

    @property
    def total(self) -> float:
        return max(self.raw - self.penalty, 0.0)


def read_points(gradebook: Gradebook, student: str | None = None) -> list[Points]:
    """Points of all submissions to all labs, or of one student's."""
    query = (
        select(
            SubmittedAssignment.id,
            SubmittedAssignment.student_id,
            func.sum(GRADED_SCORE),
            func.coalesce(SubmittedAssignment.late_submission_penalty, 0.0),
        )
        .join(SubmittedNotebook, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
        .join(Grade, Grade.notebook_id == SubmittedNotebook.id)
        .group_by(SubmittedAssignment.id)
    )
    if student is not None:
        query = query.where(SubmittedAssignment.student_id == student)
    return [Points(*row) for row in gradebook.db.execute(query)]


def labs_of(gradebook: Gradebook) -> list[str]:
    """All labs, sorted by name."""
    return list(gradebook.db.scalars(select(Assignment.name).order_by("name")))


def cells_of(gradebook: Gradebook, lab: str) -> list[str]:
    """Grade ids of a lab's graded cells, sorted by name: the gradebook has no other order."""
    query = (
        select(BaseCell.name)
        .join(Notebook, Notebook.id == BaseCell.notebook_id)
        .join(Assignment, Assignment.id == Notebook.assignment_id)
        .where(Assignment.name == lab, BaseCell.type.in_(("GradeCell", "TaskCell")))
        .order_by(BaseCell.name)
    )
    return list(gradebook.db.scalars(query))
