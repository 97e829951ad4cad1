"""The verdict on an answer: which cases run, and which mistake is named."""

from __future__ import annotations

from autograder.evaluation.decide import _pattern_across_cases, _with_one_mistake
from autograder.evaluation.judge import judge
from autograder.evaluation.verdict import CaseResult
from autograder.exercise import NAMED_MISTAKES, Case, Finding
from shardlab.ranks.trust import Trust
from tests.autograder.attempts import HIDDEN, attempt, exercise


def test_a_mistake_that_a_later_case_contradicts_is_not_named():
    """Even if a sign, which is tried after the named mistakes, explains the later case."""

    def says_three(attempt):
        return Finding("a rank", "says three") if 3 in attempt.outputs else None

    declared = exercise(
        mistakes={"says two": lambda case, inputs: 2}, signs=(NAMED_MISTAKES, says_three)
    )
    first = judge(declared, attempt(outputs=(2, 2)))
    later = judge(declared, attempt(case=HIDDEN, outputs=(3, 3)))
    named, mistake = _with_one_mistake([first], Trust.OWN)
    assert "says two" in named[0].diagnosis
    assert mistake == "says two"
    both, mistake = _with_one_mistake([first, later], Trust.OWN)
    assert mistake is None
    assert [result.diagnosis for result in both] == [
        "rank 0 gives the wrong number (2, expected 1)",
        "a rank says three",
    ]


def result(passed, weight=1.0, world_size=2, hidden=False):
    return CaseResult(f"{world_size} ranks", hidden, weight, passed)


def pattern(*outcomes):
    cases = [Case(f"{n} ranks, {i}", n) for i, (n, _) in enumerate(outcomes)]
    return _pattern_across_cases(cases, [result(passed, world_size=n) for n, passed in outcomes])


def test_passing_at_only_one_world_size_is_reported():
    assert "Every case with N = 4 passes" in pattern((4, True), (4, True), (3, False), (8, False))
    assert pattern((4, True), (3, False), (8, True)) == ""
    assert pattern((4, True), (4, False), (3, False)) == ""
    assert pattern((2, True), (3, False), (8, False)) == ""  # two ranks hide most mistakes
    assert pattern((4, True), (3, True)) == ""
    assert pattern((4, True), (3, False), (8, False)) == ""  # may differ in other ways
