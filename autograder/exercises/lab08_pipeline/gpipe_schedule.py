"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from autograder.exercises.lab08_pipeline import plans
from autograder.exercises.lab08_pipeline.plans import Look, plan_case


def backward_early(look: Look) -> str | None:
    if look.in_flight and min(look.in_flight) < look.micro_batches:
        return "runs a backward before the last forward: GPipe runs all forwards first"
    return None


def other_order_elsewhere(look: Look) -> str | None:
    """The micro-batches of the backwards, device by device."""
    orders = {tuple(k for kind, _, k in plan if kind == "B") for plan in look.plan}
    if len(orders) > 1:
        return "goes backward in another order on one device than on the next, which has to wait"
    return None


EXERCISE = plans.emitted(
    "gpipe_schedule",
    points=3,
    cases=(
        plan_case("2 devices, 4 micro-batches", (2, 4)),
        plan_case("4 devices, 8 micro-batches", (4, 8)),
    ),
    budgets=(
        plans.idle_budget(
            "idles ≤ (p - 1)(F + B) on each device", plans.at_most(plans.filled_and_drained)
        ),
        plans.in_flight_budget(
            "holds all m micro-batches", plans.at_most(lambda p, m: [m] * p, exactly=True)
        ),
    ),
    rules=(
        *plans.WRONG_CONTENT,
        plans.cannot_run,
        plans.one_at_a_time,
        backward_early,
        other_order_elsewhere,
    ),
)
