"""formgrader's view of a graded class, without a server."""

from __future__ import annotations

from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config

from autograder.pages.formgrader.api import ClassAPI
from tests.autograder.pages.feedback.graded_course import GradedCourse


def api_of(graded: GradedCourse, config: Config) -> ClassAPI:
    config.CourseDirectory.update(
        root=str(graded.root), db_url=graded.db_url, course_id="shardlab",
        source_directory="solutions", submitted_directory="grading/submitted",
        autograded_directory="grading/autograded",
    )  # fmt: skip
    config.Exchange.root = str(graded.root / "exchange")
    return ClassAPI(CourseDirectory(config=config), config=config)
