"""GPipe: all forwards, then all backwards."""

from autograder.exercises.lab09_pipeline import plans
from autograder.exercises.lab09_pipeline.plans import F_AND_B, Submitted


def wrong_order(submitted: Submitted) -> str | None:
    if min(submitted.in_flight) < submitted.micro_batches:
        return "runs a backward before the last forward: GPipe runs all forwards first"
    if max(submitted.idle) > (submitted.devices - 1) * F_AND_B:
        return "runs actions in a different order on one device than on the next, which must wait"
    return None


EXERCISE = plans.schedule_exercise(
    "gpipe_schedule",
    points=3,
    cases=plans.CASES,
    budgets=(
        plans.fills_and_drains(),
        plans.holds("holds all m micro-batches", lambda p, m: [m] * p, exactly=True),
    ),
    rules=(*plans.WRONG_CONTENT, plans.cannot_run, wrong_order),
)
