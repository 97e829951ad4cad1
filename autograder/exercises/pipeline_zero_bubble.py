"""Lab 08's puzzle: a smaller bubble than 1F1B's in the same memory, by splitting the backward.

A forward and each half of a backward take one slot.  1F1B idles 3(p − 1) slots on each device.  No
schedule of one stage per device idles less than p − 1: the last device gets its first micro-batch
after p − 1 forwards.  ZB-H1 (Qi et al., arXiv 2401.10241, section 2) reaches that for m ≥ p.
"""

from __future__ import annotations

from itertools import pairwise

from autograder.exercise import Budget, Case, Exercise
from autograder.exercises.pipeline import NEAR, P2P_ONLY
from autograder.exercises.pipeline_plans import (
    Look,
    cannot_run,
    draw_plans,
    drive_plans,
    expect_plans,
    measured,
    named,
    plan_case,
    unknown_kinds,
    wrong_actions,
    wrong_devices,
)
from autograder.guest.library import borrowed

BEATS, NEARER, OPTIMUM = "less than 1F1B", "two thirds of it", "the optimum"


def one_f_one_b_idles(devices: int) -> int:
    return 3 * (devices - 1)


def best_idles(devices: int) -> int:
    return devices - 1


def puzzle_case(
    goal: str, devices: int, micro_batches: int, runs: bool = False, hidden: bool = False
) -> Case:
    name = f"{devices} devices, {micro_batches} micro-batches: {goal}"
    sizes = (devices, micro_batches)
    return plan_case(name, sizes, runs=runs, hidden=hidden, halves=True, goal=goal)


def idle_limit(case: Case) -> list[float]:
    devices, _ = case.params["asked"][0]
    limit = {
        BEATS: one_f_one_b_idles(devices) - 1,
        NEARER: 2 * (devices - 1),
        OPTIMUM: best_idles(devices),
    }[case.params["goal"]]
    return [float(limit)] * case.world_size


def in_flight_limit(case: Case) -> list[float]:
    devices, micro_batches = case.params["asked"][0]
    return [float(min(devices, micro_batches))] * case.world_size


# ---- how far it came ----------------------------------------------------------------------------


def score(look: Look) -> str:
    """0 % for 1F1B's bubble, 100 % for the smallest that there can be."""
    if not look.facts.idle:
        return ""
    worst, best, idle = (
        one_f_one_b_idles(look.devices),
        best_idles(look.devices),
        max(look.facts.idle),
    )
    percent = 100 * (worst - idle) / (worst - best)
    return f"idles {idle} slots, 1F1B {worst}, the optimum is {best}: a score of {percent:.0f}%"


def does_not_split(look: Look) -> str | None:
    if not any(kind == "W" for actions in look.plan for kind, *_ in actions):
        return "does not split the backward: into I, which is waited for, and W, which can wait"
    return None


def holds_too_much(look: Look) -> str | None:
    held = max(look.facts.in_flight, default=0)
    if held <= min(look.devices, look.micro_batches):
        return None
    if held == look.micro_batches:
        return "holds all micro-batches at once: activations stay until W, and F has to wait for it"
    return "holds more than 1F1B's first device: none may have more than p in flight"


def weights_at_once(look: Look) -> str | None:
    """Each W right after its I, everywhere."""
    if look.facts.idle and max(look.facts.idle) >= 2 * (look.devices - 1):
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
    if look.facts.idle and max(look.facts.idle) > best_idles(look.devices):
        return "idles longer than this case allows"
    return None


ZERO_BUBBLE = Exercise(
    name="pipeline.zero_bubble_schedule",
    points=5,
    cases=(
        puzzle_case(BEATS, 4, 8, runs=True),
        puzzle_case(NEARER, 4, 8),
        puzzle_case(OPTIMUM, 4, 8),
        puzzle_case(OPTIMUM, 2, 6, runs=True, hidden=True),
        puzzle_case(OPTIMUM, 6, 14, hidden=True),
    ),
    draw=draw_plans,
    drive=drive_plans,
    expect=expect_plans,
    tolerance=NEAR,
    budgets=(
        Budget(
            "idles no longer than this case allows",
            limit=idle_limit,
            used=lambda run: measured(run, lambda facts: facts.idle, fold=max),
            heading="idle",
            unit="slots",
        ),
        Budget(
            "holds ≤ p micro-batches, as 1F1B's first device",
            limit=in_flight_limit,
            used=lambda run: measured(run, lambda facts: facts.in_flight, fold=max),
            heading="in flight",
            unit="micro-batches",
        ),
    ),
    allows=P2P_ONLY,
    diagnoses=(
        borrowed,
        named(
            "zero_bubble_schedule",
            wrong_devices,
            unknown_kinds,
            wrong_actions,
            cannot_run,
            does_not_split,
            holds_too_much,
            weights_at_once,
            idles_too_long,
            evidence=score,
        ),
    ),
)
