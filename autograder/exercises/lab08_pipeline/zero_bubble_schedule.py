"""A puzzle: a smaller bubble than 1F1B's in the same memory, by splitting the backward.

A forward and each half of a backward take one slot.  1F1B idles 3(p - 1) slots on each device.  No
schedule of one stage per device idles less than p - 1: the last device gets its first micro-batch
after p - 1 forwards.  ZB-H1 (Qi et al., arXiv 2401.10241, section 2) reaches that for m ≥ p.
"""

from __future__ import annotations

from itertools import pairwise

from autograder.exercise import Budget, Case, Limit
from autograder.exercises.lab08_pipeline import plans
from autograder.exercises.lab08_pipeline.plans import Look, plan_case

BEATS, NEARER, OPTIMUM = "less than 1F1B", "two thirds of it", "the optimum"


def puzzle_case(goal: str, devices: int, micro_batches: int, runs: bool = False) -> Case:
    p = devices
    most_idle = {BEATS: 3 * (p - 1) - 1, NEARER: 2 * (p - 1), OPTIMUM: p - 1}[goal]
    name = f"{p} devices, {micro_batches} micro-batches: {goal}"
    return plan_case(name, (p, micro_batches), runs=runs, may_split=True, most_idle=most_idle)


def score(look: Look) -> str:
    """0 % for 1F1B's bubble, 100 % for the smallest that there can be."""
    if not look.idle:
        return ""
    worst, best, idle = 3 * (look.devices - 1), look.devices - 1, max(look.idle)
    percent = 100 * (worst - idle) / (worst - best)
    return f"idles {idle} slots, 1F1B {worst}, the optimum is {best}: a score of {percent:.0f}%"


def does_not_split(look: Look) -> str | None:
    if not plans.splits_backward(look.plan):
        return "does not split the backward: into I, which is waited for, and W, which can wait"
    return None


def holds_too_much(look: Look) -> str | None:
    held = max(look.in_flight, default=0)
    if held <= min(look.devices, look.micro_batches):
        return None
    if held == look.micro_batches:
        return "holds all micro-batches at once: activations stay until W, and F has to wait for it"
    return "holds more than 1F1B's first device: none may have more than p in flight"


def weights_at_once(look: Look) -> str | None:
    """Each W right after its I, everywhere."""
    if look.idle and max(look.idle) >= 2 * (look.devices - 1):
        for actions in look.plan:
            follows = sum(
                one[0] == "I" and other == ["W", *one[1:]] for one, other in pairwise(actions)
            )
            if follows < look.micro_batches:
                return None
        return (
            "runs each W right after its I: put some off on the later devices, which have memory "
            "to spare, so that the next gradient leaves earlier"
        )
    return None


def idles_too_long(look: Look) -> str | None:
    if look.idle and max(look.idle) > look.devices - 1:
        return "idles longer than this case allows"
    return None


EXERCISE = plans.emitted(
    "zero_bubble_schedule",
    points=5,
    cases=(
        puzzle_case(BEATS, 4, 8, runs=True),
        puzzle_case(NEARER, 4, 8),
        puzzle_case(OPTIMUM, 4, 8),
    ),
    budgets=(
        Budget(
            "idles no longer than this case allows",
            plans.measured("idle", fold=max),
            lambda case: Limit(case.params["most_idle"]),
            heading="idle",
            unit="slots",
        ),
        Budget(
            "holds ≤ p micro-batches, as 1F1B's first device",
            plans.measured("in_flight", fold=max),
            lambda case: Limit(min(case.params["asked"][0])),
            heading="in flight",
            unit="micro-batches",
        ),
    ),
    rules=(
        plans.wrong_devices,
        plans.unknown_kinds,
        plans.wrong_actions,
        plans.cannot_run,
        does_not_split,
        holds_too_much,
        weights_at_once,
        idles_too_long,
    ),
    evidence=score,
)
