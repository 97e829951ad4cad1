"""Times in formgrader's lists in the night when clocks are set back, as `late` prints them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from traitlets.config import Config

from autograder.grading.course_time import to_utc, use_timezone
from autograder.pages.formgrader.api import ClassAPI
from tests.autograder.pages.feedback.graded_course import LAB, GradedCourse, Submission
from tests.autograder.pages.formgrader.class_api import api_of

FIRST, SECOND = datetime(2026, 10, 25, 0, 30), datetime(2026, 10, 25, 1, 30)  # UTC
SHOWN = {
    "graded-first": "2026-10-25 02:30:00 CEST",
    "graded-second": "2026-10-25 02:30:00 CET",
    "waiting-second": "2026-10-25 02:30:00 CET",
}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ClassAPI]:
    graded = GradedCourse(tmp_path)
    graded.grade("graded-first", Submission(at=FIRST))
    graded.grade("graded-second", Submission(at=SECOND))
    (tmp_path / "solutions" / LAB).mkdir(parents=True)
    for student in SHOWN:
        folder = tmp_path / "grading/submitted" / student / LAB
        folder.mkdir(parents=True)
        at = FIRST if student.endswith("first") else SECOND
        (folder / "timestamp.txt").write_text(f"{at} UTC")
    config = Config()
    use_timezone(config, "Europe/Berlin")
    yield api_of(graded, config)
    use_timezone(Config(), "UTC")


def test_submissions_on_the_night_when_clocks_are_set_back(api: ClassAPI) -> None:
    rows = api.get_submissions(LAB)
    assert {row["student"]: row["display_timestamp"] for row in rows} == SHOWN
    for student, shown in SHOWN.items():
        (row,) = api.get_student_submissions(student)
        assert row["display_timestamp"] == shown


@pytest.mark.parametrize(
    ("due", "shown"), [(FIRST, "02:30:00 CEST"), (SECOND, "02:30:00 CET")], ids=["first", "second"]
)
def test_a_due_date_in_that_night_survives_the_form(
    api: ClassAPI, due: datetime, shown: str
) -> None:
    with api.gradebook as gradebook:
        gradebook.update_or_create_assignment(LAB, duedate=due)
    row = api.get_assignment(LAB, released=set())
    assert row is not None
    assert row["display_duedate"] == f"2026-10-25 {shown}"
    assert to_utc(f"{row['duedate_notimezone']} {row['duedate_timezone']}") == due
