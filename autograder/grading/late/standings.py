"""Which submissions are late and what that costs, from gradebook, policy and extensions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from nbgrader.api import Assignment, Gradebook, SubmittedAssignment
from nbgrader.coursedir import CourseDirectory
from sqlalchemy import select

from autograder.grading.late.extensions import Extensions, read_extensions
from autograder.grading.late.policy import Policy, days_late, divide
from autograder.grading.roster.roster import read_roster
from autograder.grading.submission.folders import grading_folder

FILE = "extensions.csv"


@dataclass(frozen=True)
class Standing:
    """Lateness of one submission. Times are UTC; None if unknown."""

    student: str
    lab: str
    submitted_at: datetime | None
    lab_due_at: datetime | None
    due_at: datetime | None  # with the extension
    days: int  # started days late
    free_days: int  # of them
    penalty: float  # points
    stored_extension: timedelta  # in the gradebook
    stored_penalty: float

    @property
    def extension(self) -> timedelta:
        if self.due_at is None or self.lab_due_at is None:
            return timedelta(0)
        return self.due_at - self.lab_due_at

    @property
    def stored_due_at(self) -> datetime | None:
        return _plus(self.lab_due_at, self.stored_extension)

    @property
    def is_stored(self) -> bool:
        same_penalty = abs(self.penalty - self.stored_penalty) < 1e-9
        return self.extension == self.stored_extension and same_penalty


def extensions_of(course: CourseDirectory, gradebook: Gradebook) -> Extensions | None:
    """None without a table. Raises csv_tables.BadTable."""
    labs = select(Assignment.name, Assignment.duedate).order_by(Assignment.name)
    due = {row.name: row.duedate for row in gradebook.db.execute(labs)}
    return read_extensions(extensions_file(course), due, read_roster(grading_folder(course)))


def extensions_file(course: CourseDirectory) -> Path:
    return grading_folder(course) / FILE


def standings(
    gradebook: Gradebook,
    policy: Policy | None,
    extensions: Extensions | None,
    student: str | None = None,
) -> list[Standing]:
    """Of all submissions in the gradebook, by student and due date, or of one student's.

    Without a policy the penalties stay as they are, without a table the extensions.
    """
    query = (
        select(
            SubmittedAssignment.student_id,
            SubmittedAssignment.timestamp,
            SubmittedAssignment.extension,
            SubmittedAssignment.late_submission_penalty.label("penalty"),
            Assignment.name,
            Assignment.duedate,
        )
        .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
        .order_by(SubmittedAssignment.student_id, Assignment.duedate, Assignment.name)
    )
    if student is not None:
        query = query.where(SubmittedAssignment.student_id == student)
    # A subquery of nbgrader's sums up the cells: once for each lab, not for each submission.
    points = dict(gradebook.db.execute(select(Assignment.name, Assignment.max_score)).all())
    found = []
    rows = gradebook.db.execute(query)
    for who, group in itertools.groupby(rows, key=lambda row: row.student_id):
        labs = list(group)
        due = [_due(extensions, row) for row in labs]
        days = [
            days_late(row.timestamp, now) if row.timestamp and now else 0
            for row, now in zip(labs, due, strict=True)
        ]
        free = divide(days, policy.free_days if policy else 0)
        for row, now, late, covered in zip(labs, due, days, free, strict=True):
            lab_points = float(points[row.name] or 0.0)
            penalty = policy.penalty(late - covered, lab_points) if policy else row.penalty
            found.append(
                Standing(
                    who, row.name, row.timestamp, row.duedate, now, late, covered, penalty,
                    row.extension or timedelta(0), row.penalty,
                )
            )  # fmt: skip
    return found


def save(gradebook: Gradebook, wanted: Sequence[Standing]) -> None:
    """Write extensions and penalties to the gradebook, all or none."""
    for standing in wanted:
        if standing.is_stored:
            continue
        submission = gradebook.find_submission(standing.lab, standing.student)
        submission.extension = standing.extension or None
        if standing.penalty != standing.stored_penalty:
            for notebook in submission.notebooks:  # a lab has one
                notebook.late_submission_penalty = standing.penalty
    gradebook.db.commit()


def _plus(due_at: datetime | None, extension: timedelta | None) -> datetime | None:
    return due_at + extension if due_at and extension else due_at


def _due(extensions: Extensions | None, row: Any) -> datetime | None:
    if extensions is None:
        return _plus(row.duedate, row.extension)
    extension = extensions.get((row.student_id, row.name))
    return extension.due_at(row.duedate) if extension and row.duedate else row.duedate
