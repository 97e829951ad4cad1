"""Decides the verdict on an answer: runs its cases on ranks (trial.py) and compares the results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from autograder.evaluation.help import with_help
from autograder.evaluation.judge import Judged, explained, is_unwritten
from autograder.evaluation.right_calls import right_calls
from autograder.evaluation.trial import RankPool, Trials
from autograder.evaluation.verdict import CaseResult, Verdict
from autograder.evaluation.wording import printable
from autograder.exercise import Attempt, Case, Exercise
from shardlab.errors import DeadlockError, RankError, RunTimeout
from shardlab.ranks.threads import one_thread
from shardlab.ranks.trust import Trust

# Cases of one answer that may time out; the others are then skipped, to save a class's time.
MAX_TIMEOUTS = 2

OnCase = Callable[[int, Case], None]  # (cases done, the one that starts now)
OnAttempt = Callable[[Attempt], None]  # the results of one case


@one_thread()
def decide(
    exercise: Exercise,
    subject_blob: bytes | None,
    seed: int,
    *,
    trust: Trust = Trust.UNTRUSTED,
    on_case: OnCase | None = None,
    on_attempt: OnAttempt | None = None,
    ranks: RankPool | None = None,
) -> Verdict:
    """Runs an answer on its cases. ``subject_blob`` is a cloudpickle of the answer, or None.

    ``trust``: OWN for a student's own check: the visible cases, up to the first that hangs.
    UNTRUSTED for grading: all cases, until MAX_TIMEOUTS have timed out; the same answer and seed
    give the same verdict to the byte, however busy the machine is.
    ``ranks``: of the same trust, shared with other answers; by default a new set.
    Raises InfrastructureError if ranks cannot be started.
    """
    cases = [case for case in exercise.cases if trust is Trust.UNTRUSTED or not case.hidden]
    found: list[Judged] = []
    first_failed: tuple[int, Attempt] | None = None
    timeouts = 0
    unwritten = False
    skipped = "no answer was submitted" if subject_blob is None else ""
    with contextlib.ExitStack() as stack:
        ranks = ranks or stack.enter_context(RankPool(trust=trust))
        ranks.expect(exercise, cases)
        trials = Trials(exercise, subject_blob or b"", seed, ranks)
        for case in cases:
            if skipped:
                found.append(Judged(_not_run(case, skipped)))
                continue
            if on_case:
                on_case(len(found), case)
            attempt, judged = trials.run(case)
            if on_attempt:
                on_attempt(attempt)
            if first_failed is None and not judged.result.passed:
                first_failed = len(found), attempt
            found.append(judged)
            if len(found) == 1 and is_unwritten(attempt):
                unwritten, skipped = True, "not written yet"
            elif trust is Trust.OWN and isinstance(attempt.error, DeadlockError | RunTimeout):
                skipped = "fix the case above first"
            timeouts += isinstance(attempt.error, RunTimeout)
            if timeouts == MAX_TIMEOUTS:
                skipped = f"{MAX_TIMEOUTS} earlier cases timed out"
        results, mistake = _with_one_mistake(found, trust, exercise.separate_mistakes)
        if trust is Trust.OWN and first_failed and not unwritten:
            at, attempt = first_failed
            is_unexplained = _is_unexplained(attempt, found[at], results[at])
            right = right_calls(exercise, attempt.case, seed, ranks) if is_unexplained else None
            results[at] = with_help(results[at], attempt, right)
    return Verdict(
        exercise=exercise.name,
        max_points=float(exercise.points),
        cases=tuple(results),
        seed=seed,
        unwritten=unwritten,
        note="" if unwritten or mistake else _pattern_across_cases(cases, results),
    )


def _with_one_mistake(
    found: list[Judged], trust: Trust, separate: bool = False
) -> tuple[list[CaseResult], str | None]:
    """A mistake is named if it explains every case with wrong outputs; of several, the first.
    Otherwise each case reports its own finding, with its own mistake if they are ``separate``."""
    by_outputs = [each.named for each in found if each.named is not None]
    explain = [{one.finding.mistake for one in named} for named in by_outputs]
    certain = [one.finding.mistake for named in by_outputs for one in named if one.is_certain]
    mistake = next((each for each in certain if all(each in known for known in explain)), None)
    results = []
    for each in found:
        result = each.result
        if each.named is not None:
            findings = [one.finding for one in each.named if one.finding.mistake == mistake]
            if separate:
                findings += [one.finding for one in each.named if one.is_certain]
            own = each.by_sign or each.otherwise
            result = explained(result, findings[0] if findings else own, trust)
        results.append(result)
    return results, mistake


def _is_unexplained(attempt: Attempt, judged: Judged, result: CaseResult) -> bool:
    """Whether neither an exception nor a sign nor a named mistake says what is wrong."""
    otherwise = judged.otherwise
    is_other = otherwise is not None and result.mistake == printable(otherwise.mistake)
    return is_other and not isinstance(attempt.error, RankError)


def _not_run(case: Case, why: str) -> CaseResult:
    return CaseResult(case.name, case.hidden, case.weight, False, why, why, why, was_run=False)


def _pattern_across_cases(cases: list[Case], results: list[CaseResult]) -> str:
    """That cases pass at only one world size.

    Two ranks do not count: with two, a hub, a ring and an exchange of whole tensors are the same.
    Nor does one case alone, which may differ from the others in more than its number of ranks.
    """
    pairs = [*zip(cases, results, strict=True)]
    passed = [case.world_size for case, result in pairs if result.passed]
    failed = {case.world_size for case, result in pairs if not result.passed}
    if len(passed) < 2 or len({*passed}) > 1 or len(failed) < 2:
        return ""
    only = passed[0]
    if only in failed or only <= 2:
        return ""
    return f"Every case with N = {only} passes, and no case with another N."
