"""Times without a time zone are in the course's, also when clocks are set back or forward."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from nbgrader.api import Gradebook
from nbgrader.apps import NbGrader
from nbgrader.apps.dbapp import DbAssignmentAddApp
from nbgrader.apps.zipcollectapp import ZipCollectApp
from nbgrader.auth import Authenticator
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config

from autograder.grading.course_time import to_course_time, to_utc, use_timezone
from autograder.pages.feedback import student_page
from autograder.pages.scores import Scores
from tests.autograder.grading.copied_course import REPO, empty_gradebook

LAB = "03_ring_all_reduce"


@pytest.fixture
def berlin() -> Iterator[Config]:
    config = Config()
    use_timezone(config, "Europe/Berlin")
    yield config
    use_timezone(Config(), "UTC")


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-10-24 12:00", "2026-10-24 10:00"),
        ("2026-10-26 12:00", "2026-10-26 11:00"),
        ("2026-10-25 02:30", "2026-10-25 00:30"),  # occurs twice: the first
        ("2026-10-25 02:30 CEST", "2026-10-25 00:30"),
        ("2026-10-25 02:30 CET", "2026-10-25 01:30"),
        ("2026-07-01 12:00 CET", "2026-07-01 11:00"),  # not summer time, though it is summer
        ("2026-12-01 12:00 CEST", "2026-12-01 10:00"),
        ("2026-10-25 02:30 +0100", "2026-10-25 01:30"),
        ("2026-03-29 02:30", "2026-03-29 01:30"),  # does not exist: 03:30
        ("2026-10-02 13:00:00 UTC", "2026-10-02 13:00"),
        ("2026-10-02 13:00:00.000000 UTC", "2026-10-02 13:00"),
        ("2026-10-02T13:00:00 America/New_York", "2026-10-02 17:00"),
        ("2026-10-02-13-00-30", "2026-10-02 11:00:30"),
        ("2026-10-02 1:00 PM", "2026-10-02 11:00"),
    ],
)
def test_times_in_berlin(berlin: Config, text: str, utc: str) -> None:
    assert to_utc(text) == datetime.fromisoformat(utc)


def test_an_abbreviation_of_another_zone_is_read_as_written() -> None:
    assert to_utc("2026-07-01 12:00 CET") == datetime(2026, 7, 1, 11)  # in a course in UTC


def test_times_that_have_a_zone_or_are_utc_already(berlin: Config) -> None:
    noon = datetime(2026, 10, 2, 12)
    assert to_utc(noon) == noon == to_utc(noon.replace(tzinfo=UTC))
    assert to_utc(None) is None
    assert f"{to_course_time(noon):%H:%M %Z}" == "14:00 CEST"


def test_feedback_pages_show_the_courses_time(berlin: Config) -> None:
    at, due = datetime(2026, 10, 25, 1, 30), datetime(2026, 10, 24, 22)
    assert student_page._when(Scores("ada", submitted_at=at, due_at=due)) == (
        "submitted 25 October 2026, 02:30 CET, due 25 October 2026, 00:00 CEST: late"
    )


@pytest.mark.parametrize("text", ["2026-10-02 13:00 Berlin", "soon", "2026-10-02 13:00 +0200 UTC"])
def test_an_invalid_time_is_rejected(berlin: Config, text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        to_utc(text)


@pytest.mark.parametrize(
    "text", ["07.10.2026 13:00", "7/10/2026", "October 7, 2026", "2026-7-10 12:00", "2026/10/07"]
)
def test_only_a_date_that_begins_with_the_year_is_read(text: str) -> None:
    """Day first or month first: a guess would cost a class its points, or give them for nothing."""
    with pytest.raises(ValueError, match="does not begin with a date such as 2026-10-07") as error:
        to_utc(text)
    assert repr(text) in str(error.value)


def test_the_error_for_an_unknown_zone_shows_a_valid_one() -> None:
    with pytest.raises(ValueError, match="'Berlin': write a name such as Europe/Berlin"):
        use_timezone(Config(), "Berlin")


def test_nbgrader_reads_submissions_and_due_dates_in_the_zone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, berlin: Config
) -> None:
    """A zip collected in Berlin, and a due date entered there, in a separate course."""
    text = (REPO / "nbgrader_config.py").read_text()
    assert 'use_timezone(c, "UTC")' in text
    config = text.replace('use_timezone(c, "UTC")', 'use_timezone(c, "Europe/Berlin")')
    (tmp_path / "nbgrader_config.py").write_text(config)
    (tmp_path / "labs" / LAB).mkdir(parents=True)
    (tmp_path / "labs" / LAB / f"{LAB}.ipynb").write_text("{}")
    archive = tmp_path / "grading/downloaded" / LAB / "archive"
    archive.mkdir(parents=True)
    with zipfile.ZipFile(archive / "all.zip", "w") as file:
        file.writestr(f"ada_2026-10-25-12-00-30_{LAB}.ipynb", "{}")
    monkeypatch.chdir(tmp_path)
    app = ZipCollectApp()
    app.initialize([LAB])
    app.config.FileNameCollectorPlugin.named_regexp = (
        r".*/(?P<student_id>\w+?)_(?P<timestamp>[0-9-]+)_(?P<file_id>.+)\.ipynb"
    )
    app.start()

    other = NbGrader()
    other.initialize([])
    course = CourseDirectory(parent=other)
    folder = str(tmp_path / "grading/submitted/ada" / LAB)
    assert course.get_existing_timestamp(folder) == datetime(2026, 10, 25, 11, 0, 30)
    (tmp_path / "grading/gradebook.db").write_bytes(empty_gradebook())
    with Gradebook(course.db_url) as gradebook:
        lab = gradebook.update_or_create_assignment(LAB, duedate="2026-10-25 12:00")
        assert lab.duedate == datetime(2026, 10, 25, 11)


def test_a_due_date_that_is_none_ends_nbgraders_command_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "nbgrader_config.py").write_text((REPO / "nbgrader_config.py").read_text())
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        app = DbAssignmentAddApp()
        app.initialize([LAB, "--duedate=03.10.2026"])
        app.log.propagate = True
        with pytest.raises(SystemExit) as ended:
            app.start()
        assert ended.value.code == 1
    first, _ = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert first.startswith("the due date '03.10.2026' does not begin with a date such as 2026-10")


def test_an_invalid_submission_time_is_reported_and_read_as_none(
    tmp_path: Path, berlin: Config, caplog: pytest.LogCaptureFixture
) -> None:
    """By nbgrader's own commands and formgrader, which read a whole class."""
    (tmp_path / "timestamp.txt").write_text("yesterday evening-ish\n")
    course = CourseDirectory(root=str(tmp_path))
    course.log.propagate = True
    with caplog.at_level("ERROR"):
        assert course.get_existing_timestamp(str(tmp_path)) is None
    assert f"{tmp_path}/timestamp.txt: write a time such as 2026-10-02 13:00:00 UTC" in caplog.text


def test_formgrader_shows_and_accepts_due_dates_in_the_zone(tmp_path: Path, berlin: Config) -> None:
    from autograder.pages.formgrader.api import ClassAPI

    (tmp_path / "gradebook.db").write_bytes(empty_gradebook())
    (tmp_path / "source" / LAB).mkdir(parents=True)
    berlin.Exchange.root = str(tmp_path)
    course = CourseDirectory(root=str(tmp_path), db_url=f"sqlite:///{tmp_path}/gradebook.db")
    with Gradebook(course.db_url) as gradebook:
        gradebook.add_assignment(LAB, duedate=datetime(2026, 12, 1, 11))
        api = ClassAPI(course, Authenticator(), config=berlin)
        shown = api.get_assignment(LAB, released=set())
        assert shown is not None
        assert shown["display_duedate"] == "2026-12-01 12:00:00 CET"
        back = f"{shown['duedate_notimezone']} {shown['duedate_timezone']}"
        assert to_utc(back) == datetime(2026, 12, 1, 11)
