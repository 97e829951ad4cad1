"""What late work costs: arithmetic on days and points."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from autograder.grading.course_time import to_course_time, to_utc

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Policy:
    """The cost of each charged day, its maximum, and the number of free days."""

    points_per_day: float = 0.0
    share_per_day: float = 0.0  # of the lab's points
    max_points: float = math.inf  # for one lab
    max_share: float = 1.0  # of the lab's points
    free_days: int = 0  # for each student, over all labs

    def penalty(self, days: int, lab_points: float) -> float:
        """Points taken off for charged days of a lab that has ``lab_points``."""
        uncapped = days * (self.points_per_day + self.share_per_day * lab_points)
        return min(uncapped, self.max_points, self.max_share * lab_points)


def days_late(submitted_at: datetime, due_at: datetime) -> int:
    """Started days, 0 if on time; times are UTC.

    A day ends at the time of day of the due date in the course's zone, so the day on which clocks
    change has 23 or 25 hours.
    """
    if submitted_at <= due_at:
        return 0
    late = _clock(submitted_at) - _clock(due_at)
    return max(math.ceil(late / DAY), 1)


def later(due_at: datetime, days: float) -> datetime:
    """``days`` later, at the same time of day in the course's zone; times are UTC."""
    moved = to_utc(to_course_time(due_at) + days * DAY)  # datetime adds to the wall-clock time
    assert moved is not None
    return moved


def divide(days: Iterable[int], free_days: int) -> list[int]:
    """How many of each lab's late days are free, labs in order of their due dates.

    >>> divide([2, 0, 3, 1], free_days=4)
    [2, 0, 2, 0]
    """
    free = []
    for late in days:
        free.append(min(late, free_days))
        free_days -= free[-1]
    return free


def _clock(time: datetime) -> datetime:
    return to_course_time(time).replace(tzinfo=None)
