"""Reused ranks: a mistake counts only if it was made on fresh ranks."""

from __future__ import annotations

import os

import cloudpickle
import psutil
import pytest
import torch
import torch.distributed as dist

from autograder.evaluation.trial import MAX_DELAY_S, RankKind, RankPool, Trials, delays_s
from autograder.evaluation.verdict import CaseResult
from autograder.exercise import Case, Exercise
from autograder.exercise.budget import Budget, Limit
from autograder.exercise.process_memory import PROCESS_MEMORY
from shardlab.errors import RunTimeout
from shardlab.ranks.rank_set import RankSet
from shardlab.ranks.trust import Trust
from tests.autograder.exercise_halves import on_ranks

pytestmark = pytest.mark.ranks
SIZES = (2, 3, 2, 1)
CASES = tuple(Case(f"case {i}", size) for i, size in enumerate(SIZES))


def pid_exercise(**changes: object) -> Exercise:
    """Passes if the answer returns True; the rank's PID is in the output as evidence."""

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


def run_cases(answer, **changes: object) -> tuple[list[int], list[CaseResult]]:
    exercise = pid_exercise(**changes)
    pids, results = [], []
    with RankPool() as ranks:
        ranks.expect(exercise, CASES)
        trials = Trials(exercise, cloudpickle.dumps(answer), 1, ranks)
        for case in CASES:
            attempt, judged = trials.run(case)
            pids.append(attempt.outputs[0]["pid"] if attempt.outputs[0] else 0)
            results.append(judged.result)
    return pids, results


def test_ranks_are_kept_while_cases_pass():
    pids, results = run_cases(lambda case: True)
    assert all(result.passed for result in results)
    assert len(set(pids)) == 1


def test_leftover_state_of_a_case_does_not_fail_a_later_one():
    """The answer is correct only once per process, so on fresh ranks each time."""

    def once(case):
        import builtins

        first = not hasattr(builtins, "seen_here")
        builtins.seen_here = True
        return first

    pids, results = run_cases(once)
    assert all(result.passed for result in results)
    assert len(set(pids)) == len(CASES)


def test_leftover_state_of_a_case_does_not_make_a_later_one_pass():
    def from_the_second_on(case):
        import builtins

        later = hasattr(builtins, "seen_here")
        builtins.seen_here = True
        return later

    _, results = run_cases(from_the_second_on)
    assert not any(result.passed for result in results)


def test_a_mistake_made_on_new_ranks_counts_on_used_ones():
    pids, results = run_cases(lambda case: False)
    assert not any(result.passed for result in results)
    assert len(set(pids)) == 1


def test_a_different_mistake_is_run_again_on_new_ranks():
    def fails_twice(case):
        if case.world_size == 3:
            raise ValueError("a different mistake")
        return False

    pids, results = run_cases(fails_twice)
    assert not any(result.passed for result in results)
    assert len({result.mistake for result in results}) == 2
    assert pids[0] == pids[2] == pids[3]


def test_a_failing_case_does_not_affect_the_others():
    pids, results = run_cases(lambda case: case.world_size != 3)
    assert [result.passed for result in results] == [True, False, True, True]
    assert pids[0] != pids[1] != pids[2]


def test_answers_of_one_submission_share_ranks_without_affecting_each_other():
    """One answer breaks a module that the next one uses; the next one still passes."""

    def breaks_something(case):
        import math

        del math.sqrt
        return True

    def uses_it(case):
        import math

        return math.sqrt(4) == 2

    exercise = pid_exercise(cases=CASES[:2])
    with RankPool() as ranks:
        ranks.expect(exercise, exercise.cases)
        pids, passed = [], []
        for answer in (lambda case: True, breaks_something, uses_it, uses_it):
            trials = Trials(exercise, cloudpickle.dumps(answer), 1, ranks)
            attempt, judged = trials.run(exercise.cases[0])
            pids.append(attempt.outputs[0]["pid"])
            passed.append(judged.result.passed)
    assert passed == [True] * 4
    assert pids[0] == pids[1]
    assert len(set(pids)) == 3  # the third is run again on its own ranks; then new ranks are kept


def test_a_hang_costs_its_full_limit_once(monkeypatch: pytest.MonkeyPatch):
    """The limit of each run: full on new ranks, until one has hung."""
    limits_s, run = [], RankSet.run

    def hangs(ranks, *given, timeout_s, **options):
        limits_s.append(timeout_s)
        result = run(ranks, *given, timeout_s=timeout_s, **options)
        if len(limits_s) in (2, 3):
            raise RunTimeout("the run did not end").with_traceback(None)
        return result

    monkeypatch.setattr(RankSet, "run", hangs)
    exercise = pid_exercise(timeout_s=40.0)
    with RankPool(trust=Trust.UNTRUSTED) as ranks:
        ranks.expect(exercise, CASES)
        trials = Trials(exercise, cloudpickle.dumps(lambda case: True), 1, ranks)
        passed = [trials.run(case)[1].result.passed for case in CASES]
    assert passed == [True, False, True, True]
    # The second case runs on the first one's ranks, then on new ones.
    assert limits_s[:4] == [40, 10, 40, 10]
    assert set(limits_s[4:]) == {10}


def test_no_rank_outlives_the_submission():
    exercise = pid_exercise(cases=CASES[:2])
    with RankPool() as ranks:
        ranks.expect(exercise, exercise.cases)
        trials = Trials(exercise, cloudpickle.dumps(lambda case: True), 1, ranks)
        attempt, _ = trials.run(exercise.cases[0])
        pid = attempt.outputs[0]["pid"]
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)


def test_a_case_measured_from_outside_has_fresh_ranks():
    """On used ranks, memory that an earlier case freed would count as already in use."""
    size_2 = Budget(
        "process memory",
        lambda run: [0] * run.world_size,
        lambda case: Limit(1) if case.world_size == 2 else None,
        heading=PROCESS_MEMORY,
        from_outside=True,
    )
    pids, results = run_cases(lambda case: True, memory=True, budgets=(size_2,))
    assert all(result.passed for result in results)
    assert len({pids[0], pids[1], pids[2]}) == 3
    assert pids[1] == pids[3]  # cases of 3 ranks and 1, where nothing is measured


def test_live_bytes_are_recorded_only_in_cases_with_a_budget():
    """Recording slows every operation down, and each mark waits for the checker."""
    large = Budget(
        "live",
        lambda run: run.memory.peak_bytes.tolist(),
        lambda case: Limit(1000) if case.world_size == 2 else None,
    )
    exercise = pid_exercise(memory=True, budgets=(large,))
    with RankPool() as ranks:
        ranks.expect(exercise, CASES)
        trials = Trials(exercise, cloudpickle.dumps(lambda case: True), 1, ranks)
        attempts = [trials.run(case)[0] for case in CASES]
    assert [len(attempt.spent) for attempt in attempts] == [1, 0, 1, 0]
    with pytest.raises(ValueError, match="recorded no memory"):
        _ = attempts[1].run.memory


def test_packages_of_closed_modules_are_imported_before_ranks_are_forked():
    """Importing them in each rank took 8 % of the processor time of ranks in labs 09 and 11."""
    kind = RankKind("torch", False, ("shardlab.simulate.pipeline.generators", "torch.fx"))
    with RankPool().new(kind, {2}, timeout_s=20) as ranks:
        assert {"shardlab.simulate.pipeline", "torch"} <= {*ranks.preload}


def test_a_missing_wait_or_barrier_fails_with_random_delays_for_every_seed(tmp_path):
    """In one of the two orders, any rank is delayed more than any other."""
    folder = str(tmp_path)

    def answer(how, seed):
        rank, size = dist.get_rank(), dist.get_world_size()
        if how == "reads too early":  # before the last rank has written
            path = f"{folder}/{seed}-{rank}"
            open(path, "w").close()
            found = [os.path.exists(f"{folder}/{seed}-{other}") for other in range(size)]
            dist.barrier()
            os.remove(path)
            dist.barrier()
            return all(found) if rank == 0 else True
        buffer, received = torch.full((100_000,), float(rank)), torch.empty(100_000)
        sending = dist.isend(buffer, (rank + 1) % size)
        if how == "changes what it sends":
            buffer.zero_().add_(7)
        dist.recv(received, (rank - 1) % size)
        sending.wait()
        return bool((received == (rank - 1) % size).all())

    case = Case("3 ranks", 3, random_delays=True)
    with RankSet(3, quiet=True) as ranks:
        for how in ("reads too early", "changes what it sends"):
            for seed in range(20):
                orders = delays_s(pid_exercise(), case, seed)
                runs = [ranks.run(answer, how, seed, delay_s=delay_s) for delay_s in orders]
                assert not all(all(run.outputs) for run in runs), (how, seed)


def test_both_orders_of_two_ranks_occur():
    case = Case("4 ranks", 4, random_delays=True)
    for seed in range(20):
        one, other = delays_s(pid_exercise(), case, seed)
        assert sorted(one) == pytest.approx(sorted(other))
        assert (min(one), max(one)) == (0, MAX_DELAY_S)
        assert all((one[a] < one[b]) != (other[a] < other[b]) for a in range(4) for b in range(a))
    assert delays_s(pid_exercise(), case, 1) == delays_s(pid_exercise(), case, 1)
    assert delays_s(pid_exercise(), CASES[0], 1) == [[]]
