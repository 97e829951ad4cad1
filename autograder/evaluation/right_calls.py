"""The calls of the course's solution for a case: recorded, or in a checkout from a run of it."""

from __future__ import annotations

from autograder.evaluation.trial import RankPool, Trials
from autograder.exercise import Case, Exercise
from autograder.exercise.call_difference import RightCalls, calls_of
from shardlab.ranks import codec


def right_calls(exercise: Exercise, case: Case, seed: int, ranks: RankPool) -> RightCalls | None:
    """None if it makes none, or is not known. ``ranks``: the caller's own, not a grader's."""
    is_alone = case.world_size == 1 or exercise.allows == frozenset()
    are_others = exercise.execute or exercise.engine == "deepspeed" or not exercise.compares_calls
    if is_alone or are_others:  # others make its calls
        return None
    half = exercise.required_half
    if (solution := half.solution()) is None:
        return half.right_calls(case)
    attempt, judged = Trials(exercise, codec.encode_any(solution), seed, ranks).run(case)
    return calls_of(attempt.run) if attempt.run and judged.result.passed else None
