"""Cases on ranks that stay: a mistake has to be made on fresh ranks to count."""

from __future__ import annotations

import cloudpickle
import psutil
import pytest

from autograder.evaluation.trial import KeptRanks, Trials
from autograder.evaluation.verdict import CaseResult
from autograder.exercise import Case, Exercise
from tests.autograder.made import on_ranks

pytestmark = pytest.mark.ranks
SIZES = (2, 3, 2, 1)
CASES = tuple(Case(f"case {i}", size) for i, size in enumerate(SIZES))


def pid_exercise(**changes: object) -> Exercise:
    """The answer's ``right`` has to hold; its process comes along as evidence."""

    def drive(subject, given, case):
        import os

        return {"right": bool(subject(case)), "pid": os.getpid()}

    settings = {
        "name": "trial.answer",
        "points": 1,
        "cases": CASES,
        "inputs": lambda case, rng: [None] * case.world_size,
        "drive": drive,
        "reference": lambda case, inputs: [{"right": True}] * case.world_size,
    }
    return on_ranks(**(settings | changes))


def tried(answer, **changes: object) -> tuple[list[int], list[CaseResult]]:
    exercise = pid_exercise(**changes)
    pids, results = [], []
    with KeptRanks() as ranks:
        ranks.expect(exercise, CASES)
        trials = Trials(exercise, cloudpickle.dumps(answer), 1, ranks)
        for case in CASES:
            attempt, judged = trials.of(case)
            pids.append(attempt.outputs[0]["pid"] if attempt.outputs[0] else 0)
            results.append(judged.result)
    return pids, results


def test_ranks_stay_while_all_goes_well():
    pids, results = tried(lambda case: True)
    assert all(result.passed for result in results)
    assert len(set(pids)) == 1


def test_what_a_case_leaves_behind_fails_no_later_one():
    """It works once in a process: on fresh ranks it is right each time."""

    def once(case):
        import builtins

        first = not hasattr(builtins, "seen_here")
        builtins.seen_here = True
        return first

    pids, results = tried(once)
    assert all(result.passed for result in results)
    assert len(set(pids)) == len(CASES)


def test_what_a_case_leaves_behind_passes_no_failing_one_that_comes_first():
    def from_the_second_on(case):
        import builtins

        later = hasattr(builtins, "seen_here")
        builtins.seen_here = True
        return later

    _, results = tried(from_the_second_on)
    assert not any(result.passed for result in results)


def test_a_mistake_is_believed_on_used_ranks_once_it_was_made_on_new_ones():
    pids, results = tried(lambda case: False)
    assert not any(result.passed for result in results)
    assert len(set(pids)) == 1


def test_another_mistake_is_tried_on_new_ranks():
    def fails_twice(case):
        if case.world_size == 3:
            raise ValueError("of another kind")
        return False

    pids, results = tried(fails_twice)
    assert not any(result.passed for result in results)
    assert len({result.mistake for result in results}) == 2
    assert pids[0] == pids[2] == pids[3]


def test_a_case_that_fails_costs_the_others_nothing():
    pids, results = tried(lambda case: case.world_size != 3)
    assert [result.passed for result in results] == [True, False, True, True]
    assert pids[0] != pids[1] != pids[2]


def test_answers_of_one_submission_share_ranks_and_fail_each_for_itself():
    """The first breaks what the second one uses: the second has its marks all the same."""

    def breaks_something(case):
        import math

        del math.sqrt
        return True

    def uses_it(case):
        import math

        return math.sqrt(4) == 2

    exercise = pid_exercise(cases=CASES[:2])
    with KeptRanks() as ranks:
        ranks.expect(exercise, exercise.cases)
        pids, passed = [], []
        for answer in (lambda case: True, breaks_something, uses_it, uses_it):
            trials = Trials(exercise, cloudpickle.dumps(answer), 1, ranks)
            attempt, judged = trials.of(exercise.cases[0])
            pids.append(attempt.outputs[0]["pid"])
            passed.append(judged.result.passed)
    assert passed == [True] * 4
    assert pids[0] == pids[1]
    assert len(set(pids)) == 3  # one try for the third alone, then new ones that stay


def test_no_rank_outlives_the_submission():
    exercise = pid_exercise(cases=CASES[:2])
    with KeptRanks() as ranks:
        ranks.expect(exercise, exercise.cases)
        trials = Trials(exercise, cloudpickle.dumps(lambda case: True), 1, ranks)
        attempt, _ = trials.of(exercise.cases[0])
        pid = attempt.outputs[0]["pid"]
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("changes", [{"memory": True}])
def test_some_exercises_have_fresh_ranks_for_each_case(changes):
    pids, results = tried(lambda case: True, **changes)
    assert all(result.passed for result in results)
    assert len(set(pids)) == len(CASES)
