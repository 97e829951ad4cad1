"""Decides an answer, in a process that runs no student code.

Inputs are drawn here, from a seed that is written down; every rank gets its own and no other.
The answer is unpickled on ranks only, and what comes back is plain data, compared here.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable

import numpy as np

from autograder.drive import on_rank
from autograder.exercise import Attempt, Case, Exercise, Spent
from autograder.judge import is_unwritten, judge
from autograder.threads import one_thread
from autograder.verdict import CaseResult, Verdict
from shardlab import launch, source
from shardlab.errors import DeadlockError, LaunchError, RankError, RunTimeout
from shardlab.ranks.client import Host
from shardlab.run import Run

MOST_LATE = 2  # cases of one answer that may run out of time: the others then cost a class nothing
VISIBLE_SEED = 2026  # of a student's own checks: the same inputs each time
PATIENCE = 10.0  # times an exercise's timeout_s that may pass on a busy machine

OnCase = Callable[[int, Case], None]  # (cases done, the one that starts now)
OnAttempt = Callable[[Attempt], None]  # what one case left behind


class InfrastructureError(Exception):
    """The case could not be run, and that is not the student's doing: try again."""

    def _render_traceback_(self) -> list[str]:
        """IPython's hook: the checker's own frames tell a student nothing."""
        return [f"\x1b[31m{type(self).__name__}\x1b[0m: {self} (not your doing: try again)"]


@one_thread()
def decide(
    exercise: Exercise,
    subject_blob: bytes | None,
    seed: int,
    *,
    hidden: bool = True,
    stop_at_hang: bool = False,
    on_case: OnCase | None = None,
    on_attempt: OnAttempt | None = None,
    host: Host | None = None,
) -> Verdict:
    """Runs every case on fresh ranks. ``subject_blob`` is a cloudpickle of the answer, or None.

    ``hidden`` is how a grader calls it: all cases, and for the same answer and seed the same
    verdict to the byte, however busy the machine is.
    ``stop_at_hang`` skips what follows a case that hung: a student at the keyboard needs that one.
    A grader goes on, but only until MOST_LATE cases have run out of time.
    ``host``: who forks the ranks, a sandbox's say.
    Raises InfrastructureError where ranks could not be had.
    """
    cases = [case for case in exercise.cases if hidden or not case.hidden]
    results: list[CaseResult] = []
    late = 0
    unwritten = False
    skipped = "nothing was handed in" if subject_blob is None else ""
    for case in cases:
        if subject_blob is None or skipped:
            why = (skipped, skipped, skipped)
            results.append(
                CaseResult(case.name, case.hidden, case.weight, False, *why, was_run=False)
            )
            continue
        if on_case:
            on_case(len(results), case)
        attempt = attempt_case(exercise, case, subject_blob, seed, host=host, steady=hidden)
        if on_attempt:
            on_attempt(attempt)
        results.append(judge(exercise, attempt))
        if len(results) == 1 and is_unwritten(attempt):
            unwritten, skipped = True, "not written yet"
        elif stop_at_hang and isinstance(attempt.error, DeadlockError | RunTimeout):
            skipped = "mend the case that hangs first"
        late += isinstance(attempt.error, RunTimeout)
        if late == MOST_LATE:
            skipped = f"{MOST_LATE} cases had run out of time"
    return Verdict(
        exercise=exercise.name,
        max_points=float(exercise.points),
        cases=tuple(results),
        seed=seed,
        unwritten=unwritten,
        note="" if unwritten else _seen_across(cases, results),
    )


def attempt_case(
    exercise: Exercise,
    case: Case,
    subject_blob: bytes,
    seed: int,
    *,
    host: Host | None = None,
    steady: bool = False,
) -> Attempt:
    """One case on fresh ranks. A failure of student code is part of what it returns.

    ``steady``: nothing in it hangs on how busy the machine is.
    Raises InfrastructureError for a failure that is the machine's.
    """
    inputs = list(exercise.draw(case, rng_for(exercise, case, seed)))
    expected = list(exercise.expect(case, inputs))
    if not len(inputs) == len(expected) == case.world_size:
        raise ValueError(f"{exercise.name}, {case.name}: needs one input and output for each rank")
    error: LaunchError | None = None
    run: Run | None
    try:
        # What student code says of a file's name must not have that file read here.
        with source.without_files() if steady else contextlib.nullcontext():
            run = launch(
                on_rank,
                exercise.drive,
                case,
                subject_blob,
                world_size=case.world_size,
                inputs=inputs,
                timeout_s=exercise.timeout_s,
                device="cpu",
                engine=exercise.engine,
                memory=exercise.memory,
                seed=seed_of_ranks(exercise, case, seed),
                results="plain",
                quiet=True,
                host=host,
                # all are connected from the start: who opens another connection hides something
                may_connect=not exercise.is_point_to_point,
                patience=PATIENCE if steady else 1.0,
                output_bytes=exercise.output_bytes,
            )
    except (RankError, DeadlockError, RunTimeout) as failure:
        error, run = failure, failure.run
    except Exception as failure:
        raise InfrastructureError(f"{exercise.name}, {case.name}: {failure}") from failure
    if run is not None:  # so that whose call is found first does not hang on a moment
        run.calls.sort(key=lambda call: call.rank)
    return Attempt(
        case=case,
        inputs=inputs,
        expected=expected,
        outputs=run.outputs if run and (error is None or not steady) else [None] * case.world_size,
        run=run,
        error=error,
        spent=_hold_against_budgets(exercise, case, run) if run else (),
        steady=steady,
    )


def _hold_against_budgets(exercise: Exercise, case: Case, run: Run) -> tuple[Spent, ...]:
    held = []
    for budget in exercise.budgets:
        limit = budget.limit(case)
        if limit is not None:
            least = budget.least(case) if budget.least else [0] * case.world_size
            used = budget.used(run)
            measured = (_ints(used), _ints(limit), _ints(least))
            held.append(Spent(budget.label, *measured, budget.heading, budget.unit))
    return tuple(held)


def _ints(values: Iterable[float]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def rng_for(exercise: Exercise, case: Case, seed: int) -> np.random.Generator:
    """A case's own generator: adding or reordering cases leaves the others' inputs alone."""
    return np.random.default_rng(_derived(f"{seed}/{exercise.name}/{case.name}"))


def seed_of_ranks(exercise: Exercise, case: Case, seed: int) -> int:
    """What ranks draw from. Not ``seed``: a rank that knew it would know the others' inputs."""
    return _derived(f"ranks/{seed}/{exercise.name}/{case.name}")


def _derived(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _seen_across(cases: list[Case], results: list[CaseResult]) -> str:
    """Passing at one world size and at no other means that its number is written in the code.

    Two ranks do not count: there a hub, a ring and an exchange of whole tensors are the same.
    """
    passed = {case.world_size for case, result in zip(cases, results, strict=True) if result.passed}
    failed = {
        case.world_size for case, result in zip(cases, results, strict=True) if not result.passed
    }
    if len(passed) == 1 and len(failed) > 1 and not passed & failed and min(passed) > 2:
        (only,) = passed
        return (
            f"It works only for N = {only}: look for a {only} or a {only - 1} written where "
            "world_size belongs."
        )
    return ""
