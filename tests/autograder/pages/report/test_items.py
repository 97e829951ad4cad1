"""Mean share of the points and discrimination of exercises, from a class's marks."""

from __future__ import annotations

import math
import statistics

import pytest

from autograder.course.tries import Tries
from autograder.pages.report.items import MIN_STUDENTS, analyze
from autograder.pages.report.mistakes import Mistake
from autograder.pages.scores import Mark, Scores

CELLS = ("check_a", "check_b", "check_c", "essay")


def scores(student: int, *points: float, essay_pending: bool = True) -> Scores:
    marks = {
        cell: Mark(value, 4.0, is_pending=cell == "essay" and essay_pending, by_hand=False)
        for cell, value in zip(CELLS, points, strict=True)
    }
    return Scores(f"s{student}", has_submission=True, max_points=16.0, marks=marks)


# a and b correlate; c is right where they are wrong.
POINTS = [(n % 5, min(n % 5, 3), 4 - n % 5, 0.0) for n in range(MIN_STUDENTS)]


def test_discrimination_is_the_correlation_with_the_rest_of_the_points() -> None:
    essays = [scores(n, *points, essay_pending=n < 3) for n, points in enumerate(POINTS)]
    a, _, c, essay = analyze(CELLS, essays, [Mistake("a", "adds twice", 3, 5, False)], {})
    assert a.mean_share == pytest.approx(0.5)
    assert a.mistakes == ("adds twice (3)",)
    # The same by the textbook formula for a corrected item-total correlation.
    of_a = [points[0] for points in POINTS]
    total = [sum(points[:3]) for points in POINTS]  # without the essay, which is not graded for all
    r, s_t, s_i = statistics.correlation(of_a, total), *map(statistics.pstdev, (total, of_a))
    corrected = (r * s_t - s_i) / math.sqrt(s_i**2 + s_t**2 - 2 * r * s_t * s_i)
    assert a.discrimination == pytest.approx(corrected)
    assert c.discrimination is not None
    assert c.discrimination < -0.9
    assert (essay.students, essay.why_not) == (7, f"fewer than {MIN_STUDENTS} final scores")


def test_no_correlation_for_small_classes_or_equal_points() -> None:
    small = [scores(n, *points) for n, points in enumerate(POINTS[1:])]
    assert all(item.discrimination is None for item in analyze(CELLS, small, [], {}))
    assert analyze(CELLS, small, [], {})[0].mean_share is not None
    same = [scores(n, 4, *points[1:]) for n, points in enumerate(POINTS)]
    item = analyze(CELLS, same, [], {})[0]
    assert (item.mean_share, item.discrimination, item.why_not) == (1, None, "all scores are equal")
    assert analyze(CELLS, [], [], {})[0].mean_share is None


def test_tries_until_a_pass_count_only_students_whose_check_passed() -> None:
    known = {
        "s0": {"a": Tries(5, 3)},
        "s1": {"a": Tries(6, 6), "b": Tries(2)},
        "s2": {"a": Tries(9)},  # has not passed
        "s3": {},
    }
    mistakes = [Mistake("a", "adds twice", 3, 5, False, tries=2.5)]
    a, b, c, _ = analyze(CELLS, [scores(0, 1, 1, 1, 1)], mistakes, known)
    assert (a.tries_words, b.tries_words, c.tries_words) == ("4.5 (2 of 3)", "(0 of 1)", "")
    assert a.mistakes == ("adds twice (3; tries: 2.5)",)
