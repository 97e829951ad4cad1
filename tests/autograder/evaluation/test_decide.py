"""The verdict on an answer: which cases run, and which mistake is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autograder.evaluation import decide as decide_module
from autograder.evaluation.decide import _pattern_across_cases, _with_one_mistake
from autograder.evaluation.judge import Judged, judge
from autograder.evaluation.verdict import CaseResult, Verdict
from autograder.exercise import NAMED_MISTAKES, Attempt, Case, Exercise, Finding
from autograder.guest.answer import STUB
from shardlab.errors import RankError, RunTimeout
from shardlab.ranks.trust import Trust
from tests.autograder.attempts import HIDDEN, VISIBLE, attempt, exercise


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


def test_cases_of_separate_branches_have_mistakes_of_their_own():
    declared = exercise(
        mistakes={"says two": lambda case, inputs: 2, "says three": lambda case, inputs: 3}
    )
    first = judge(declared, attempt(outputs=(2, 2)))
    later = judge(declared, attempt(case=HIDDEN, outputs=(3, 3)))
    other = judge(declared, attempt(outputs=(4, 4)))
    results, mistake = _with_one_mistake([first, later, other], Trust.OWN, separate=True)
    assert mistake is None
    assert [result.mistake for result in results] == [
        "says two",
        "says three",
        "gives the wrong number",
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


# ---- which cases run

MORE = (VISIBLE, Case("2 other ranks", 2), Case("2 more ranks", 2), HIDDEN)
Decided = Callable[..., Verdict]


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> Decided:
    """The verdict if the cases end in this way, each with an error or with every rank's output."""

    def decided(
        *ends: object, cases: tuple[Case, ...] = MORE, trust: Trust = Trust.UNTRUSTED, **more: Any
    ) -> Verdict:
        left = iter(ends)

        class Ends:
            def __init__(self, exercise: Exercise, *_: object) -> None:
                self.exercise = exercise

            def run(self, case: Case) -> tuple[Attempt, Judged]:
                end = next(left)
                error = end if isinstance(end, Exception) else None
                made = attempt(case, [None if error else end] * case.world_size, error=error)
                return made, judge(self.exercise, made)

        monkeypatch.setattr(decide_module, "Trials", Ends)
        return decide_module.decide(exercise(cases, **more), b"an answer", seed=1, trust=trust)

    return decided


def test_a_student_runs_the_visible_cases_and_a_grader_all(decided: Decided) -> None:
    own = decided(1, 1, 1, trust=Trust.OWN)
    assert [case.name for case in own.cases] == [case.name for case in MORE[:3]]
    graded = decided(1, 1, 1, 2)
    assert [case.passed for case in graded.cases] == [True, True, True, False]
    assert (own.points, graded.points) == (4, 3)


def test_a_grader_skips_the_rest_after_two_timeouts(decided: Decided) -> None:
    slow = RunTimeout("the run took 20 s")
    graded = decided(slow, 1, slow)
    assert [case.was_run for case in graded.cases] == [True, True, True, False]
    assert graded.cases[3].diagnosis == "2 earlier cases timed out"
    assert decided(slow, 1, 1, 1).cases[3].passed


def test_a_student_fixes_what_hangs_first(decided: Decided) -> None:
    own = decided(1, RunTimeout("the run took 20 s"), trust=Trust.OWN)
    assert [case.was_run for case in own.cases] == [True, True, False]
    assert own.cases[2].diagnosis == "fix the case above first"


def test_the_other_cases_of_a_stub_are_not_run(decided: Decided) -> None:
    stub = RankError("", rank=0, kind="NotImplementedError", message=STUB)
    graded = decided(stub)
    assert graded.unwritten
    assert [case.diagnosis for case in graded.cases[1:]] == ["not written yet"] * 3
    later = decided(1, stub, 1, 1)  # it is one of the answer's branches
    assert not later.unwritten
    assert later.points == 3


def test_a_pattern_is_noted_unless_a_mistake_explains_it(decided: Decided) -> None:
    sizes = tuple(Case(f"{n} ranks, {i}", n) for i, n in enumerate((4, 4, 3, 8)))
    assert "with N = 4 passes" in decided(1, 1, 2, 2, cases=sizes).note
    assert decided(1, 1, 2, 2, cases=sizes, mistakes={"adds": lambda *_: 2}).note == ""
