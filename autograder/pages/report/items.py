"""Item analysis: the mean share of an exercise's points, whether it separates strong from weak
work, and how many tries it took."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autograder.course.tries import Tries
from autograder.pages.report.mistakes import Mistake
from autograder.pages.report.read_labs import exercise_of
from autograder.pages.report.tries import median_tries
from autograder.pages.scores import Scores

# With 10 students, a correlation of 0.3 has a 95 % interval of -0.4 to 0.8 (Fisher's z); with fewer
# it is meaningless.
MIN_STUDENTS = 10
MAX_MISTAKES = 3


@dataclass(frozen=True)
class Item:
    """One exercise. ``why_not``: why there is no discrimination, else ""."""

    name: str
    mean_share: float | None  # of the points: 1 if all students have all; None without marks
    discrimination: float | None  # from -1 to 1
    why_not: str
    students: int  # with final points
    mistakes: tuple[str, ...]  # the most frequent named ones, with students and median tries
    tries_to_pass: float | None  # median of the students whose own check passed; None if none
    tries_of: tuple[int, int]  # number of students in this median, and with any count

    @property
    def tries_words(self) -> str:
        passed, known = self.tries_of
        median = "" if self.tries_to_pass is None else f"{self.tries_to_pass:g} "
        return f"{median}({passed} of {known})" if known else ""


def analyze(
    cells: Sequence[str],
    submitted: Sequence[Scores],
    mistakes: Sequence[Mistake],
    tries: Mapping[str, Mapping[str, Tries]],
) -> list[Item]:
    """``cells``: grade ids. ``submitted``: scores of students who submitted; an unwritten answer
    has no points. Points that wait for manual grading are excluded. ``tries``: {student: {answer:
    ...}} for those whose notebook contains them."""
    final = {
        cell: {
            scores.student: mark
            for scores in submitted
            if (mark := scores.marks.get(cell)) is not None and not mark.is_pending
        }
        for cell in cells
    }
    # A rest score needs the same exercises for all students.
    complete = [cell for cell in cells if submitted and len(final[cell]) == len(submitted)]
    items = []
    for cell in cells:
        marks = final[cell]
        shares = [mark.points / mark.max_points for mark in marks.values() if mark.max_points]
        rest = [
            sum(final[other][student].points for other in complete if other != cell)
            for student in marks
        ]
        points = [mark.points for mark in marks.values()]
        discrimination, why_not = _discrimination(points, rest)
        name = exercise_of(cell)
        to_pass = [known[name].to_pass for known in tries.values() if name in known]
        frequent = [m for m in mistakes if m.exercise == name][:MAX_MISTAKES]
        items.append(
            Item(
                name,
                statistics.fmean(shares) if shares else None,
                discrimination,
                why_not,
                len(marks),
                tuple(f"{m.mistake} ({m.students}{_in_tries(m)})" for m in frequent),
                median_tries(to_pass),
                (sum(count > 0 for count in to_pass), len(to_pass)),
            )
        )
    return items


def _in_tries(mistake: Mistake) -> str:
    return f"; tries: {mistake.tries:g}" if mistake.tries else ""


def _discrimination(points: Sequence[float], rest: Sequence[float]) -> tuple[float | None, str]:
    """The corrected item-total correlation: of an exercise's points with the sum of all others.

    L. Crocker, J. Algina: Introduction to Classical and Modern Test Theory (1986). The total
    excludes the exercise itself, which would otherwise be correlated with itself.
    """
    if len(points) < MIN_STUDENTS:
        return None, f"fewer than {MIN_STUDENTS} final scores"
    try:
        return statistics.correlation(points, rest), ""
    except statistics.StatisticsError:
        return None, "all scores are equal"
