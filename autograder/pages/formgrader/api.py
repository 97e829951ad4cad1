"""The queries of formgrader's pages about a class, without a separate one for each student."""

from __future__ import annotations

import os
from typing import Any

from nbgrader.api import Assignment, MissingEntry, SubmittedAssignment, SubmittedNotebook
from nbgrader.apps.api import NbGraderAPI
from sqlalchemy.orm import joinedload, object_session

from autograder.grading.gradebook import indexes
from autograder.pages.formgrader.gradebook import ClassGradebook

_indexed: set[str] = set()  # databases known to have the indexes


class ClassAPI(NbGraderAPI):
    """Serves one request, with the same results as nbgrader's own."""

    _first: ClassGradebook | None = None
    _only: str | None = None  # the one student whose files are searched

    @property
    def gradebook(self) -> ClassGradebook:
        # nbgrader's inspects the whole schema each time, up to 20 times per page.
        if self._first is None:
            self._first = ClassGradebook(self.coursedir.db_url, self.course_id)
            if self.coursedir.db_url not in _indexed:
                _indexed.add(self.coursedir.db_url)
                with self._first.engine.connect() as connection:
                    indexes.add(connection)
        return self._first.new_session()

    def _filter_existing_notebooks(
        self, assignment_id: str, notebooks: list[SubmittedNotebook]
    ) -> list[SubmittedNotebook]:
        # nbgrader queries the student of each. The session does not query loaded objects again.
        session = object_session(notebooks[0]) if notebooks else None
        loaded = session and (
            session.query(SubmittedAssignment)
            .options(joinedload(SubmittedAssignment.student))
            .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
            .filter(Assignment.name == assignment_id)
            .all()
        )
        found = super()._filter_existing_notebooks(assignment_id, notebooks)
        del loaded  # kept until here: a session has only weak references
        return found

    # ---- one student's page: nbgrader goes through the whole class for each lab on it

    def get_submission(
        self,
        assignment_id: str,
        student_id: str,
        ungraded: set[str] | None = None,
        students: dict[str, Any] | None = None,
    ) -> dict[str, Any] | None:
        if ungraded is not None or students is not None:
            return super().get_submission(assignment_id, student_id, ungraded, students)
        known = self.get_student(student_id, submitted=set())
        self._only = student_id
        try:
            return super().get_submission(
                assignment_id, student_id, None, {student_id: known} if known else {}
            )
        finally:
            self._only = None

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
        there = os.path.isdir(self.coursedir.format_path(step, self._only, lab))
        return {self._only} if there else set()
