"""Late days and penalties, also when clocks are set back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from traitlets.config import Config

from autograder.grading.course_time import use_timezone
from autograder.grading.late.policy import Policy, days_late, divide, later

DUE = datetime(2026, 10, 24, 21, 59)  # 23:59 in Berlin, the night before clocks are set back


@pytest.fixture(autouse=True)
def berlin() -> Iterator[None]:
    use_timezone(Config(), "Europe/Berlin")
    yield
    use_timezone(Config(), "UTC")


@pytest.mark.parametrize(
    ("hours", "days"), [(-1, 0), (0, 0), (0.001, 1), (24, 1), (25, 1), (25.001, 2), (49, 2)]
)
def test_a_started_day_counts_and_one_has_25_hours(hours: float, days: int) -> None:
    assert days_late(DUE + timedelta(hours=hours), DUE) == days


def test_work_in_a_repeated_hour_is_late() -> None:
    first = datetime(2026, 10, 25, 0, 30)  # 02:30 CEST; 45 minutes later it is 02:15 CET
    assert days_late(first + timedelta(minutes=45), first) == 1


def test_an_extension_ends_at_the_same_time_of_day() -> None:
    assert later(DUE, 1) - DUE == timedelta(hours=25)
    assert later(DUE - timedelta(days=10), 1) == DUE - timedelta(days=9)


def test_free_days_go_to_the_earliest_labs() -> None:
    assert divide([2, 0, 3, 1], 4) == [2, 0, 2, 0]


@pytest.mark.parametrize(
    ("policy", "days", "points"),
    [
        (Policy(), 3, 0),
        (Policy(points_per_day=0.5), 3, 1.5),
        (Policy(share_per_day=0.1), 3, 6),
        (Policy(share_per_day=0.1, max_share=0.25), 3, 5),
        (Policy(points_per_day=2, max_points=3), 3, 3),
        (Policy(points_per_day=15), 3, 20),  # no more than the lab has
    ],
)
def test_penalty_of_a_lab_with_20_points(policy: Policy, days: int, points: float) -> None:
    assert policy.penalty(days, lab_points=20) == pytest.approx(points)
