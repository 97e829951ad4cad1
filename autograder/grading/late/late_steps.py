"""Late work in nbgrader's own steps: `nbgrader autograde` and formgrader use these."""

from __future__ import annotations

import math
from typing import Any

from nbformat import NotebookNode
from nbgrader.coursedir import CourseDirectory
from nbgrader.plugins import LateSubmissionPlugin
from nbgrader.preprocessors import AssignLatePenalties, NbGraderPreprocessor
from traitlets import Float, Integer

from autograder.grading.gradebook.database import opened
from autograder.grading.late.policy import Policy
from autograder.grading.late.standings import extensions_of, save, standings


class LateDays(LateSubmissionPlugin):
    """Deducts points for each started day, after a number of free days."""

    points_per_day = Float(0.0, min=0.0, help="Points taken off for each started day.").tag(
        config=True
    )
    share_per_day = Float(
        0.0, min=0.0, max=1.0, help="Share of the lab's points taken off for each started day."
    ).tag(config=True)
    max_points = Float(math.inf, min=0.0, help="Maximum points off a lab.").tag(config=True)
    max_share = Float(1.0, min=0.0, max=1.0, help="Maximum share of a lab's points off.").tag(
        config=True
    )
    free_days = Integer(0, min=0, help="Late days that cost a student nothing, over all labs.").tag(
        config=True
    )

    @property
    def policy(self) -> Policy | None:
        """None if the configuration sets no ``c.LateDays``: penalties then stay as they are."""
        if not self.config.get("LateDays"):
            return None
        return Policy(
            self.points_per_day,
            self.share_per_day,
            self.max_points,
            self.max_share,
            self.free_days,
        )

    def late_submission_penalty(
        self, student_id: str, score: float, total_seconds_late: float
    ) -> float | None:
        step = self.parent  # nbgrader's AssignLatePenalties, in the middle of one submission
        found = standings(step.gradebook, self.policy, None, student_id)
        return next((s.penalty for s in found if s.lab == step.assignment_id), None)


class LatePenalties(AssignLatePenalties):
    """nbgrader's step; without a policy, the penalty that the gradebook has stays.

    nbgrader's own resets it first, also for a submission in time.
    """

    def preprocess(
        self, nb: NotebookNode, resources: dict[str, Any]
    ) -> tuple[NotebookNode, dict[str, Any]]:
        is_ours = issubclass(self.plugin_class, LateDays)
        if is_ours and LateDays(parent=self).policy is None:
            return nb, resources
        return super().preprocess(nb, resources)


class ApplyExtension(NbGraderPreprocessor):
    """Before LatePenalties: writes the student's extension to the gradebook.

    Raises csv_tables.BadTable if a row of the table is wrong.
    """

    def preprocess(
        self, nb: NotebookNode, resources: dict[str, Any]
    ) -> tuple[NotebookNode, dict[str, Any]]:
        about = resources["nbgrader"]
        course = CourseDirectory(parent=self)
        with opened(course) as gradebook:
            extensions = extensions_of(course, gradebook)
            found = standings(gradebook, None, extensions, about["student"])
            save(gradebook, [s for s in found if s.lab == about["assignment"]])
        return nb, resources
