"""In which one of the states a submission ends, and the sentence that says so to the student."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autograder.evaluation.verdict import Verdict
from autograder.grading.record.record import GRADED, RESOURCE_LIMIT, STUDENT_ERROR, TAMPERING, State


def state_of(
    verdicts: Iterable[Verdict],
    *,
    tampering: Sequence[str],
    limits_hit: Sequence[str],
    missing: Sequence[str],
) -> tuple[State, str]:
    """(state, reason). The sequences hold sentences about the notebook's own cells; ``missing``
    one for each answer that never reached its check.

    An infrastructure error is an exception until the engine gives up: it is not among these.
    """
    cases = [(verdict, case) for verdict in verdicts for case in verdict.cases]
    said_of: tuple[tuple[State, Sequence[str]], ...] = (
        (TAMPERING, tampering),
        (RESOURCE_LIMIT, limits_hit),
    )
    for state, said in said_of:
        if said:
            return state, said[0]
        for verdict, case in cases:
            if case.trouble == state:
                return state, f"{verdict.answer}, {case.title}: {case.diagnosis}"
    if missing:
        return STUDENT_ERROR, missing[0]
    return GRADED, ""
