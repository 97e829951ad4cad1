"""Points, and verdicts as plain data."""

from __future__ import annotations

import json
import math

import pytest

from autograder.evaluation.verdict import CaseResult, Verdict
from autograder.exercise import BudgetUsage


def result(passed, weight=1.0, world_size=2, hidden=False):
    return CaseResult(f"{world_size} ranks", hidden, weight, passed)


@pytest.mark.parametrize(
    ("cases", "points"),
    [
        ([], 0.0),
        ([result(True)], 4.0),
        ([result(False)], 0.0),
        ([result(True), result(False)], 2.0),
        ([result(True, weight=3), result(False)], 3.0),
        ([result(True, weight=0)], 0.0),
        ([result(True, weight=math.nan)], 0.0),
        ([result(True, weight=math.inf)], 0.0),
        ([result(True, weight=3), result(False, weight=-1)], 4.0),
    ],
)
def test_points_are_clamped_plain_floats(cases, points):
    verdict = Verdict("lab.answer", 4.0, tuple(cases), seed=1)
    assert verdict.points == points
    assert type(verdict.points) is float


def test_verdicts_survive_a_round_trip_through_json():
    spent = (BudgetUsage("sends", (3, 4), (5, 5), (0, 0)),)
    case = CaseResult("2 ranks", True, 1, False, "m", "a", "b", sent_bytes=(3, 4), spent=spent)
    verdict = Verdict("lab.answer", 4.0, (case,), seed=1)
    plain = json.loads(json.dumps(verdict.to_plain()))
    assert Verdict.from_plain(plain) == verdict
    assert plain["points"] == 0.0


@pytest.mark.parametrize(
    "change",
    [
        {"seed": "1"},
        {"seed": True},
        {"max_points": None},
        {"cases": {}},
        {"cases": [{}]},
        {"more": 1},
    ],
)
def test_an_invalid_verdict_is_refused(change):
    with pytest.raises(ValueError, match=r"Verdict|CaseResult"):
        Verdict.from_plain(Verdict("lab.answer", 4.0, (), seed=1).to_plain() | change)
