"""Decides an answer: every case tried on ranks (trial.py), and what shows across the cases."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from autograder.evaluation.judge import Judged, explained, is_unwritten
from autograder.evaluation.threads import one_thread
from autograder.evaluation.trial import KeptRanks, Trials
from autograder.evaluation.verdict import CaseResult, Verdict
from autograder.exercise import Attempt, Case, Exercise
from shardlab.errors import DeadlockError, RunTimeout

MOST_LATE = 2  # cases of one answer that may run out of time: the others then cost a class nothing

OnCase = Callable[[int, Case], None]  # (cases done, the one that starts now)
OnAttempt = Callable[[Attempt], None]  # what one case left behind


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
    ranks: KeptRanks | None = None,
) -> Verdict:
    """Tries every case. ``subject_blob`` is a cloudpickle of the answer, or None.

    ``hidden`` is how a grader calls it: all cases, and for the same answer and seed the same
    verdict to the byte, however busy the machine is.
    ``stop_at_hang`` skips what follows a case that hung: a student at the keyboard needs that one.
    A grader goes on, but only until MOST_LATE cases have run out of time.
    ``ranks``: those that other answers are tried on, too; by default its own.
    Raises InfrastructureError where ranks could not be had.
    """
    cases = [case for case in exercise.cases if hidden or not case.hidden]
    found: list[Judged] = []
    late = 0
    unwritten = False
    skipped = "nothing was handed in" if subject_blob is None else ""
    with contextlib.ExitStack() as stack:
        ranks = ranks or stack.enter_context(KeptRanks(steady=hidden))
        ranks.expect(exercise, cases)
        trials = Trials(exercise, subject_blob or b"", seed, ranks)
        for case in cases:
            if skipped:
                found.append(Judged(_not_run(case, skipped)))
                continue
            if on_case:
                on_case(len(found), case)
            attempt, judged = trials.of(case)
            if on_attempt:
                on_attempt(attempt)
            found.append(judged)
            if len(found) == 1 and is_unwritten(attempt):
                unwritten, skipped = True, "not written yet"
            elif stop_at_hang and isinstance(attempt.error, DeadlockError | RunTimeout):
                skipped = "not run: fix the hanging case first"
            late += isinstance(attempt.error, RunTimeout)
            if late == MOST_LATE:
                skipped = f"{MOST_LATE} cases had run out of time"
    results = _by_one_mistake(found, ranks.steady)
    return Verdict(
        exercise=exercise.name,
        max_points=float(exercise.points),
        cases=tuple(results),
        seed=seed,
        unwritten=unwritten,
        note="" if unwritten else _seen_across(cases, results),
    )


def _by_one_mistake(found: list[Judged], is_steady: bool) -> list[CaseResult]:
    """A mistake is named where it explains every case that failed by its outputs; of several, the
    first.  Where none does, each case says what it has seen."""
    by_outputs = [each.named for each in found if each.named is not None]
    explain = [{one.finding.mistake for one in named} for named in by_outputs]
    certain = [one.finding.mistake for named in by_outputs for one in named if one.is_certain]
    mistake = next((each for each in certain if all(each in known for known in explain)), None)
    results = []
    for each in found:
        result = each.result
        if each.named is not None:
            findings = [one.finding for one in each.named if one.finding.mistake == mistake]
            result = explained(result, findings[0] if findings else each.otherwise, is_steady)
        results.append(result)
    return results


def _not_run(case: Case, why: str) -> CaseResult:
    return CaseResult(case.name, case.hidden, case.weight, False, why, why, why, was_run=False)


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
