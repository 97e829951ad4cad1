"""`nbgrader export` with nbgrader's own columns, but the points of our export."""

from __future__ import annotations

from nbgrader.api import Gradebook, SubmittedAssignment
from nbgrader.plugins import CsvExportPlugin
from sqlalchemy.orm.attributes import set_committed_value

from autograder.pages.scores import read_points


class GradedPoints(CsvExportPlugin):
    """Excludes marks for earlier answers, which nbgrader includes before anyone confirms them."""

    def export(self, gradebook: Gradebook) -> None:
        raw = {points.submission: points.raw for points in read_points(gradebook)}
        find = gradebook.find_submission

        def find_with_points(lab: str, student: str) -> SubmittedAssignment:
            found = find(lab, student)
            set_committed_value(found, "score", raw.get(found.id, 0.0))  # never written back
            return found

        gradebook.find_submission = find_with_points
        super().export(gradebook)
