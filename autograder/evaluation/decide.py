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
from shardlab.ranks.trust import Trust

MOST_LATE = 2  # cases of one answer that may run out of time: the others then cost a class nothing

OnCase = Callable[[int, Case], None]  # (cases done, the one that starts now)
OnAttempt = Callable[[Attempt], None]  # what one case left behind


@one_thread()
def decide(
    exercise: Exercise,
    subject_blob: bytes | None,
    seed: int,
    *,
    trust: Trust = Trust.UNTRUSTED,
    on_case: OnCase | None = None,
    on_attempt: OnAttempt | None = None,
    ranks: KeptRanks | None = None,
) -> Verdict:
    """Tries an answer on its cases. ``subject_blob`` is a cloudpickle of the answer, or None.

    ``trust``: OWN is a student's own check: the visible cases, up to the first that hangs, which
    is the one to fix.  UNTRUSTED is a grader's: all cases, until MOST_LATE have run out of time;
    for the same answer and seed the same verdict to the byte, however busy the machine is.
    ``ranks``: of the same trust, and shared with other answers; by default its own.
    Raises InfrastructureError where ranks could not be had.
    """
    cases = [case for case in exercise.cases if trust is Trust.UNTRUSTED or not case.hidden]
    found: list[Judged] = []
    late = 0
    unwritten = False
    skipped = "nothing was handed in" if subject_blob is None else ""
    with contextlib.ExitStack() as stack:
        ranks = ranks or stack.enter_context(KeptRanks(trust=trust))
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
            elif trust is Trust.OWN and isinstance(attempt.error, DeadlockError | RunTimeout):
                skipped = "not run: fix the hanging case first"
            late += isinstance(attempt.error, RunTimeout)
            if late == MOST_LATE:
                skipped = f"{MOST_LATE} cases had run out of time"
    results = _by_one_mistake(found, trust)
    return Verdict(
        exercise=exercise.name,
        max_points=float(exercise.points),
        cases=tuple(results),
        seed=seed,
        unwritten=unwritten,
        note="" if unwritten else _seen_across(cases, results),
    )


def _by_one_mistake(found: list[Judged], trust: Trust) -> list[CaseResult]:
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
            result = explained(result, findings[0] if findings else each.otherwise, trust)
        results.append(result)
    return results


def _not_run(case: Case, why: str) -> CaseResult:
    return CaseResult(case.name, case.hidden, case.weight, False, why, why, why, was_run=False)


def _seen_across(cases: list[Case], results: list[CaseResult]) -> str:
    """Passing at one world size and at no other means that its number is written in the code.

    Two ranks do not count: there a hub, a ring and an exchange of whole tensors are the same.
    """
    passed, failed = set[int](), set[int]()
    for case, result in zip(cases, results, strict=True):
        (passed if result.passed else failed).add(case.world_size)
    if len(passed) == 1 and len(failed) > 1 and not passed & failed and min(passed) > 2:
        (only,) = passed
        return (
            f"It works only for N = {only}: look for a {only} or a {only - 1} written where "
            "world_size belongs."
        )
    return ""
