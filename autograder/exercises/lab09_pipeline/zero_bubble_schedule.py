"""A puzzle: a smaller bubble than 1F1B's in the same memory, by splitting the backward.

A forward and each half of a backward take one slot.  1F1B idles 3(p - 1) slots on each device.  No
schedule with one stage per device idles less than p - 1: the last device gets its first micro-batch
after p - 1 forwards.  ZB-H1 (Qi et al., arXiv 2401.10241, section 2) reaches that for m ≥ p.
"""

from autograder.exercise import Budget, Case, Limit
from autograder.exercises.lab09_pipeline import plans
from autograder.exercises.lab09_pipeline.plans import Submitted, plan_case

BEATS, NEARER, OPTIMUM = "less idle than 1F1B", "two thirds of 1F1B's bubble", "the optimum"


def most_idle(goal: str, p: int) -> int:
    return {BEATS: 3 * (p - 1) - 1, NEARER: 2 * (p - 1), OPTIMUM: p - 1}[goal]


def puzzle_case(goal: str, p: int, m: int, *more: tuple[int, int], runs: bool = False) -> Case:
    """``more``: (devices, micro_batches) of further schedules that it requests."""
    asked = (p, m), *more
    idle = sum(most_idle(goal, devices) for devices, _ in asked)
    name = f"{p} devices, {m} micro-batches: {goal}"
    return plan_case(name, *asked, runs=runs, may_split=True, most_idle=idle)


def score(submitted: Submitted) -> str:
    """0 % for 1F1B's bubble, 100 % for the smallest possible; none if it holds too many."""
    if max(submitted.in_flight) > submitted.devices:
        return f"{max(submitted.in_flight)} in flight, p is {submitted.devices}"
    worst, best, idle = 3 * (submitted.devices - 1), submitted.devices - 1, max(submitted.idle)
    share = max(0.0, (worst - idle) / (worst - best))
    return f"idles {idle} slots, 1F1B {worst}, the optimum is {best}: a score of {share:.0%}"


def falls_short(submitted: Submitted) -> str | None:
    if max(submitted.in_flight) > submitted.devices:
        return (
            "holds more than p micro-batches on a device: activations stay until W, so F must wait "
            "for an earlier W"
        )
    if max(submitted.idle) > submitted.devices - 1:
        return "idles longer than the case allows"
    return None


EXERCISE = plans.schedule_exercise(
    "zero_bubble_schedule",
    points=5,
    cases=(
        puzzle_case(BEATS, 4, 8, runs=True),
        puzzle_case(NEARER, 5, 5),
        puzzle_case(OPTIMUM, 4, 9),
    ),
    budgets=(
        Budget(
            "idles no longer than the case allows",
            plans.measured("idle", fold=max),
            lambda case: Limit(case.params["most_idle"]),
            heading="idle",
            unit="slots",
        ),
        Budget(
            "holds ≤ p micro-batches, as 1F1B's first device",
            plans.measured("in_flight", max, lambda p, m: [min(p, m)] * p),
            lambda case: Limit(sum(map(min, case.params["asked"]))),
            heading="in flight",
            unit="micro-batches",
        ),
    ),
    rules=(plans.wrong_actions, plans.cannot_run, falls_short),
    evidence=score,
)
