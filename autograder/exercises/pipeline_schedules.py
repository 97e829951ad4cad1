"""Lab 08: GPipe, 1F1B and interleaved 1F1B as data."""

from __future__ import annotations

from typing import Any

from autograder.exercise import Case, Exercise
from autograder.exercise.kept_back import kept_back
from autograder.exercises.pipeline import NEAR, P2P_ONLY
from autograder.exercises.pipeline_plans import (
    Look,
    cannot_run,
    draw_plans,
    drive_plans,
    expect_plans,
    idle_budget,
    in_flight_budget,
    named,
    plan_case,
    splits,
    unknown_kinds,
    wrong_actions,
    wrong_devices,
)
from autograder.guest.library import borrowed

F_AND_B = 3  # slots: a forward takes 1, a backward 2


def of_sizes(case: Case, inputs: Any) -> list[tuple[int, ...]]:
    return [tuple(sizes) for sizes in case.params["asked"]]


# ---- limits by device ---------------------------------------------------------------------------


@kept_back(of_sizes)
def filled_and_drained(devices: int, micro_batches: int, chunks: int = 1) -> list[int]:
    """Idle slots: p − 1 forwards and backwards, of one chunk where there are several."""
    return [(devices - 1) * F_AND_B] * devices


@kept_back(of_sizes)
def all_of_them(devices: int, micro_batches: int) -> list[int]:
    return [micro_batches] * devices


@kept_back(of_sizes)
def until_the_first_is_back(devices: int, micro_batches: int) -> list[int]:
    return [min(micro_batches, devices - device) for device in range(devices)]


@kept_back(of_sizes)
def rounds_until_the_first_is_back(devices: int, micro_batches: int, chunks: int) -> list[int]:
    """Narayanan et al., arXiv 2104.04473: Megatron's warm-up and one more."""
    return [
        min(micro_batches * chunks, 2 * (devices - 1 - device) + (chunks - 1) * devices + 1)
        for device in range(devices)
    ]


# ---- GPipe --------------------------------------------------------------------------------------


def one_at_a_time(look: Look) -> str | None:
    in_flight, idle = look.facts.in_flight, look.facts.idle
    alone = bool(in_flight) and max(in_flight) == 1 < look.micro_batches
    if alone and look.devices > 1 and idle[0] > (look.devices - 1) * F_AND_B:
        return (
            "waits for each micro-batch to come back before the next goes in: that is naive model "
            "parallelism"
        )
    return None


def other_order_elsewhere(look: Look) -> str | None:
    """The micro-batches of the backwards, device by device."""
    orders = {tuple(k for kind, _, k in plan if kind == "B") for plan in look.plan}
    if len(orders) > 1:
        return "goes backward in another order on one device than on the next, which has to wait"
    return None


def backward_early(look: Look) -> str | None:
    if look.facts.in_flight and min(look.facts.in_flight) < look.micro_batches:
        return "runs a backward before the last forward: GPipe runs all forwards first"
    return None


GPIPE = Exercise(
    name="pipeline.gpipe_schedule",
    points=3,
    cases=(
        plan_case("2 devices, 4 micro-batches", (2, 4)),
        plan_case("4 devices, 8 micro-batches", (4, 8)),
        plan_case("4 devices, 3 micro-batches", (4, 3), hidden=True),
        plan_case(
            "several sizes, simulated", (3, 7), (8, 12), (6, 6), (5, 2), runs=False, hidden=True
        ),
    ),
    draw=draw_plans,
    drive=drive_plans,
    expect=expect_plans,
    tolerance=NEAR,
    budgets=(
        idle_budget("idles ≤ (p - 1)(F + B) on each device", filled_and_drained),
        in_flight_budget("holds all m micro-batches", all_of_them, exactly=True),
    ),
    allows=P2P_ONLY,
    diagnoses=(
        borrowed,
        named(
            "gpipe_schedule",
            wrong_devices,
            unknown_kinds,
            splits,
            wrong_actions,
            cannot_run,
            one_at_a_time,
            backward_early,
            other_order_elsewhere,
        ),
    ),
)


# ---- 1F1B ---------------------------------------------------------------------------------------


def wrong_warm_up(look: Look) -> str | None:
    held, p, m = look.facts.in_flight, look.devices, look.micro_batches
    right = [min(m, p - device) for device in range(p)]
    if not held or held == right:
        return None
    if p > 1 and m > 1 and held == [m] * p:
        return (
            "warms up too long: all forwards before any backward is GPipe, and holds all "
            "micro-batches; here backwards start as soon as the first gradient can come"
        )
    if held == [min(m, p - device + 1) for device in range(p)]:
        return "warms up too long: by one forward. devices - 1 - stage of them come first"
    if held == [min(m, p)] * p:
        return "warms up too long: the later the stage, the sooner its first backward"
    if held == right[::-1]:
        return "warms up too long at the end: the first stage waits longest for a gradient"
    if any(one > other for one, other in zip(held, right, strict=True)):
        return "holds more activations than 1F1B: at most devices - stage"
    return "warms up too briefly: devices - 1 - stage forwards come before the first pair"


ONE_F_ONE_B = Exercise(
    name="pipeline.one_f_one_b_schedule",
    points=4,
    cases=(
        plan_case("2 devices, 4 micro-batches", (2, 4)),
        plan_case("4 devices, 8 micro-batches", (4, 8)),
        plan_case("4 devices, 2 micro-batches", (4, 2), hidden=True),
        plan_case(
            "several sizes, simulated", (3, 7), (8, 12), (6, 6), (5, 13), runs=False, hidden=True
        ),
    ),
    draw=draw_plans,
    drive=drive_plans,
    expect=expect_plans,
    tolerance=NEAR,
    budgets=(
        idle_budget("idles ≤ (p - 1)(F + B) on each device", filled_and_drained),
        in_flight_budget("device i holds ≤ p - i micro-batches", until_the_first_is_back),
    ),
    allows=P2P_ONLY,
    diagnoses=(
        borrowed,
        named(
            "one_f_one_b_schedule",
            wrong_devices,
            unknown_kinds,
            splits,
            wrong_actions,
            one_at_a_time,
            cannot_run,
            wrong_warm_up,
        ),
    ),
)


# ---- interleaved --------------------------------------------------------------------------------


def blocks_of_stages(look: Look) -> str | None:
    home = {stage: device for device, plan in enumerate(look.plan) for _, stage, _ in plan}
    if look.chunks > 1 and home == {stage: stage // look.chunks for stage in home}:
        return (
            "gives a device stages that follow each other: deal them out in turn, stage s to "
            "device s % devices"
        )
    return None


def chunks_in_one_order(look: Look) -> str | None:
    """Of the two halves of the list: which chunk comes first in each."""
    for plan in look.plan:
        backwards = [stage for kind, stage, _ in plan if kind == "B"]
        if backwards and look.chunks > 1 and backwards[0] < look.devices:
            return "starts backward with the first chunk: it comes through the last chunk first"
    return None


def chunk_after_chunk(look: Look) -> str | None:
    p, m = look.devices, look.micro_batches
    for plan in look.plan:
        forwards = [stage for kind, stage, _ in plan if kind == "F"]
        if m > p and len(set(forwards[:m])) == 1:
            return "runs all micro-batches through one chunk before the next: go in rounds of p"
    return None


def wrong_rounds(look: Look) -> str | None:
    """Megatron's warm-up leaves time for sends; where they take none, so many fewer will do."""
    p, v = look.devices, look.chunks
    for device, plan in enumerate(look.plan):
        before = [kind for kind, *_ in plan].index("B")
        behind = p - 1 - device
        least, most = ((v - 1) * p + times * behind + 1 for times in (1, 2))
        if before > min(most, look.micro_batches * v):
            return "warms up too long: 2(p - 1 - device) + (v - 1)p forwards come first"
        if before < min(least, look.micro_batches * v):
            return "warms up too briefly: 2(p - 1 - device) + (v - 1)p forwards come first"
    return None


INTERLEAVED = Exercise(
    name="pipeline.interleaved_schedule",
    points=5,
    cases=(
        plan_case("2 devices of 2 chunks, 4 micro-batches", (2, 4, 2)),
        plan_case("4 devices of 2 chunks, 8 micro-batches", (4, 8, 2)),
        plan_case("2 devices of 3 chunks, 6 micro-batches", (2, 6, 3), hidden=True),
        plan_case(
            "several sizes, simulated", (4, 12, 3), (3, 6, 2), (8, 16, 4), runs=False, hidden=True
        ),
    ),
    draw=draw_plans,
    drive=drive_plans,
    expect=expect_plans,
    tolerance=NEAR,
    budgets=(
        idle_budget("idles ≤ (p - 1)(F + B) of one chunk", filled_and_drained),
        in_flight_budget(
            "device i holds ≤ 2(p - 1 - i) + (v - 1)p + 1",
            rounds_until_the_first_is_back,
            unit="chunks",
        ),
    ),
    allows=P2P_ONLY,
    diagnoses=(
        borrowed,
        named(
            "interleaved_schedule",
            wrong_devices,
            unknown_kinds,
            splits,
            blocks_of_stages,
            wrong_actions,
            chunks_in_one_order,
            chunk_after_chunk,
            wrong_rounds,
            cannot_run,
        ),
    ),
)
