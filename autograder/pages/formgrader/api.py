"""The queries of formgrader's class pages, without a separate query for each student."""

from __future__ import annotations

import functools
import os
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from nbgrader.api import Assignment, MissingEntry, SubmittedAssignment, SubmittedNotebook
from nbgrader.apps.api import NbGraderAPI
from sqlalchemy.orm import joinedload, object_session

from autograder.grading.course_time import to_course_time
from autograder.grading.gradebook import indexes
from autograder.grading.gradebook.database import require_not_moved
from autograder.grading.pool.journal import Journal
from autograder.grading.record.record import BrokenRecord, Record
from autograder.grading.submission.folders import records_folder
from autograder.pages.formgrader.gradebook import ClassGradebook

_indexed: set[str] = set()  # databases known to have the indexes


@functools.lru_cache(maxsize=20_000)
def _state(path: Path, changed_ns: int) -> str:
    """The state of the record in a file; ``changed_ns`` identifies its version in the cache."""
    try:
        return Record.from_json(path.read_bytes()).state
    except (BrokenRecord, OSError):
        return ""


def _averages(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Mean scores of the listed submissions."""
    scores = ("score", "code_score", "written_score", "task_score")
    return {f"average_{key}": fmean(row[key] for row in rows) if rows else 0.0 for key in scores}


class ClassAPI(NbGraderAPI):
    """Serves one request, with the same results as nbgrader's own API.

    In addition, a submission has its ``late_penalty`` and the grader's ``state`` ("" without a
    record). Scores of submissions and students, and averages, are those of the reports: after
    penalties, and without answers that wait for a mark.
    """

    _first: ClassGradebook | None = None
    _only: str | None = None  # the one student whose files are searched

    @property
    def gradebook(self) -> ClassGradebook:
        # nbgrader's own inspects the whole schema each time, up to 20 times per page.
        if self._first is None:
            require_not_moved(self.coursedir.db_url)
            self._first = ClassGradebook(self.coursedir.db_url, self.course_id)
            if self.coursedir.db_url not in _indexed:
                _indexed.add(self.coursedir.db_url)
                with self._first.engine.connect() as connection:
                    indexes.add(connection)
        return self._first.new_session()

    def _filter_existing_notebooks(
        self, assignment_id: str, notebooks: list[SubmittedNotebook]
    ) -> list[SubmittedNotebook]:
        # nbgrader queries the student of each notebook, unless the session has already loaded it.
        session = object_session(notebooks[0]) if notebooks else None
        loaded = session and (
            session.query(SubmittedAssignment)
            .options(joinedload(SubmittedAssignment.student))
            .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
            .filter(Assignment.name == assignment_id)
            .all()
        )
        found = super()._filter_existing_notebooks(assignment_id, notebooks)
        del loaded  # kept until here, because a session has only weak references
        return found

    def get_assignment(
        self, assignment_id: str, released: set[str] | None = None
    ) -> dict[str, Any] | None:
        found: dict[str, Any] | None = super().get_assignment(assignment_id, released)
        if found:
            # nbgrader fills in today's offset, which is wrong for a due date in the other half of
            # the year. If an hour occurs twice, the zone's name means the first of them.
            due = found["duedate"] and to_course_time(datetime.fromisoformat(found["duedate"]))
            found["duedate_timezone"] = f"{due:%z}" if due and due.fold else self.timezone
            with self.gradebook as gradebook:
                found |= _averages(gradebook.submission_dicts(assignment_id))
        return found

    def get_notebooks(self, assignment_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = super().get_notebooks(assignment_id)
        with self.gradebook as gradebook:
            for row in found:
                row |= _averages(gradebook.notebook_submission_dicts(row["name"], assignment_id))
        return found

    # ---- late penalties and states, which nbgrader's pages lack

    def get_submissions(self, assignment_id: str) -> list[dict[str, Any]]:
        return [self._with_state(row) for row in super().get_submissions(assignment_id)]

    def get_notebook_submissions(
        self, assignment_id: str, notebook_id: str
    ) -> list[dict[str, Any]]:
        found = super().get_notebook_submissions(assignment_id, notebook_id)
        return [self._with_state(row, assignment_id) for row in found]

    def get_student_notebook_submissions(
        self, student_id: str, assignment_id: str
    ) -> list[dict[str, Any]]:
        found = super().get_student_notebook_submissions(student_id, assignment_id)
        with self.gradebook as gradebook:
            for row in found:
                if row["id"] is not None:  # else the notebook in autograded/ is missing
                    of_one = row["name"], assignment_id, student_id
                    row |= next(iter(gradebook.notebook_submission_dicts(*of_one)), {})
        return [self._with_state(row, assignment_id) for row in found]

    def get_student(
        self, student_id: str, submitted: set[str] | None = None
    ) -> dict[str, Any] | None:
        found: dict[str, Any] | None = super().get_student(student_id, submitted)
        with self.gradebook as gradebook:
            return found and found | {"score": gradebook.totals(student_id)[student_id]}

    def get_students(self) -> list[dict[str, Any]]:
        with self.gradebook as gradebook:
            totals = gradebook.totals()
        return [row | {"score": totals[row["id"]]} for row in super().get_students()]

    def _with_state(self, row: dict[str, Any], lab: str | None = None) -> dict[str, Any]:
        """``lab``: default: the row's name, for a row of a list of labs."""
        folder = records_folder(self.coursedir)
        path = Journal(folder, lab or row["name"]).path(row["student"])
        # The record of an earlier submission says nothing about one that is not graded yet.
        is_known = row.get("autograded", True) and path.exists()
        return {**row, "state": _state(path, path.stat().st_mtime_ns) if is_known else ""}

    # ---- one student's page: for each lab on it, nbgrader iterates over the whole class

    def get_submission(
        self,
        assignment_id: str,
        student_id: str,
        ungraded: set[str] | None = None,
        students: dict[str, Any] | None = None,
    ) -> dict[str, Any] | None:
        if ungraded is not None or students is not None:
            return super().get_submission(assignment_id, student_id, ungraded, students)
        known = super().get_student(student_id, submitted=set())
        self._only = student_id
        try:
            found = super().get_submission(
                assignment_id, student_id, None, {student_id: known} if known else {}
            )
        finally:
            self._only = None
        if found and found["autograded"]:
            with self.gradebook as gradebook:
                found |= gradebook.submission_dict(assignment_id, student_id) or {}
        return found and self._with_state(found)

    def get_submitted_students(self, assignment_id: str) -> set[str]:
        if self._only is None:
            return super().get_submitted_students(assignment_id)
        return self._only_if_folder(self.coursedir.submitted_directory, assignment_id)

    def get_autograded_students(self, assignment_id: str) -> set[str]:
        if self._only is None:
            return super().get_autograded_students(assignment_id)
        with self.gradebook as gradebook:
            try:
                written = gradebook.find_submission(assignment_id, self._only).timestamp
            except MissingEntry:
                return set()
        if self.get_submitted_timestamp(assignment_id, self._only) != written:
            return set()  # submitted again since then
        return self._only_if_folder(self.coursedir.autograded_directory, assignment_id)

    def _only_if_folder(self, step: str, lab: str) -> set[str]:
        assert self._only is not None
        exists = os.path.isdir(self.coursedir.format_path(step, self._only, lab))
        return {self._only} if exists else set()
