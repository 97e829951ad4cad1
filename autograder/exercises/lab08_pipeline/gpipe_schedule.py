"""GPipe: all forwards, then all backwards."""

from autograder.exercises.lab08_pipeline import plans
from autograder.exercises.lab08_pipeline.plans import Submitted


def wrong_order(submitted: Submitted) -> str | None:
    if min(submitted.in_flight) < submitted.micro_batches:
        return "runs a backward before the last forward: GPipe runs all forwards first"
    for each, name in (("F", "forwards"), ("B", "backwards")):
        if len({tuple(k for kind, _, k in plan if kind == each) for plan in submitted.plan}) > 1:
            order = "in a different order on one device than on the next, which must wait"
            return f"runs {name} {order}"
    return None


EXERCISE = plans.schedule_exercise(
    "gpipe_schedule",
    points=3,
    cases=plans.CASES,
    budgets=(
        plans.fills_and_drains(),
        plans.holds("holds all m micro-batches", lambda p, m: [m] * p, exactly=True),
    ),
    rules=(*plans.WRONG_CONTENT, plans.cannot_run, plans.one_at_a_time, wrong_order),
)
