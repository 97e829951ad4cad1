"""Interleaved 1F1B: several chunks of the model on each device."""

from autograder.exercise import Case
from autograder.exercise.signs import MistakeText
from autograder.exercises.lab08_pipeline import plans
from autograder.exercises.lab08_pipeline.plans import Submitted, plan_case
from shardlab.simulate.pipeline import interleaved_one_f_one_b

# Slots of a message between devices.  With messages that take no time, a warm-up of half the length
# idles no longer.
MESSAGE = 0.25
IN_A_SLOT = int(1 / MESSAGE)


def interleaved_case(name: str, *asked: tuple[int, int, int], runs: bool = True) -> Case:
    return plan_case(name, *asked, runs=runs, message=MESSAGE)


def idle(devices: int, micro_batches: int, chunks: int) -> list[int]:
    """In quarter slots: devices wait only for the messages of one micro-batch, through all stages
    and back.  Megatron's schedule reaches it."""
    waits_for = 2 * (chunks * devices - 1)
    return [IN_A_SLOT * (devices - 1) * plans.F_AND_B + waits_for] * devices


def in_flight(devices: int, micro_batches: int, chunks: int) -> list[int]:
    """Narayanan et al., arXiv 2104.04473: Megatron's warm-up plus one."""
    return [
        min(micro_batches * chunks, 2 * (devices - 1 - device) + (chunks - 1) * devices + 1)
        for device in range(devices)
    ]


def blocks_of_stages(submitted: Submitted) -> str | None:
    home = {stage: device for device, plan in enumerate(submitted.plan) for _, stage, _ in plan}
    if (
        home
        and submitted.chunks > 1
        and home == {stage: stage // submitted.chunks for stage in home}
    ):
        return (
            "gives a device consecutive stages: assign them in turn, stage s to device s % devices"
        )
    return None


def wrong_order(submitted: Submitted) -> str | None:
    """On every device the actions of one kind are in just this order."""
    p, m, v = submitted.devices, submitted.micro_batches, submitted.chunks
    usual = interleaved_one_f_one_b(p, m, v)
    plans_of = {
        kind: [[action[1:] for action in plan if action[0] == kind] for plan in submitted.plan]
        for kind in "FB"
    }
    right = [[[stage, k] for kind, stage, k in plan if kind == "F"] for plan in usual]
    if plans_of["B"] == right:
        return "starts the backward with the first chunk: gradients start in the last chunk"
    if m > p and plans_of["F"] == [sorted(plan) for plan in right]:
        return "runs all micro-batches through one chunk before the next: go in rounds of p"
    if p > 1 and plans_of["F"] == [sorted(plan, key=lambda action: action[::-1]) for plan in right]:
        return (
            "runs one micro-batch through all chunks before the next: in a round, p micro-batches "
            "go through the first chunk, then the same p through the second"
        )
    return None


def wrong_warm_up(submitted: Submitted) -> MistakeText:
    """The right forwards and the right backwards in the right orders, merged too early or late."""
    p, m, v = submitted.devices, submitted.micro_batches, submitted.chunks
    usual = interleaved_one_f_one_b(p, m, v)
    first = []  # by device: the position of its first backward, and that in Megatron's schedule
    for plan, right in zip(submitted.plan, usual, strict=True):
        for each in "FB":
            if [a for a in plan if a[0] == each] != [list(a) for a in right if a[0] == each]:
                return None
        first.append([[kind for kind, *_ in each].index("B") for each in (plan, right)])
    warm_up = [min((v - 1) * p + 2 * (p - 1 - device), m * v) for device in range(p)]
    if [before for before, _ in first] == warm_up:
        return (
            "starts its backwards one forward too early: 2(p - 1 - device) + (v - 1)p forwards "
            "come first, then pairs, each a forward and then a backward"
        )
    wrong = [
        ("long" if before > wanted else "short", f"device {device}: {before}, not {wanted}")
        for device, (before, wanted) in enumerate(first)
        if before != wanted
    ]
    if not wrong:
        return None
    how = wrong[0][0]
    evidence = f"forwards before the first backward, with that of the first pair: {wrong[0][1]}"
    is_mixed = len({each for each, _ in wrong}) == 2
    other = "short" if how == "long" else "long"
    where = f" on some devices and too {other} a one on others" if is_mixed else ""
    mistake = f"has too {how} a warm-up{where}: 2(p - 1 - device) + (v - 1)p forwards come first"
    if how == "short" and not is_mixed and not submitted.illegal:
        mistake += ": while a message is on its way, a device needs work"
    return mistake, evidence


EXERCISE = plans.schedule_exercise(
    "interleaved_schedule",
    points=5,
    cases=(
        interleaved_case("4 devices of 2 chunks, 8 micro-batches", (4, 8, 2)),
        interleaved_case("4 devices of 2 chunks, 4 micro-batches; 3 of 3, 6", (4, 4, 2), (3, 6, 3)),
    ),
    budgets=(
        plans.budget(
            "idles ≤ (p - 1)(F + B) of one chunk and 2(vp - 1) messages",
            "idle",
            idle,
            "idle",
            "quarter slots",
        ),
        plans.holds("device i holds ≤ 2(p - 1 - i) + (v - 1)p + 1", in_flight, unit="chunks"),
    ),
    rules=(
        plans.wrong_form,
        plans.splits,
        plans.swapped,
        blocks_of_stages,
        plans.wrong_actions,
        wrong_order,
        wrong_warm_up,
        plans.cannot_run,
        plans.differs_from("Megatron's schedule", interleaved_one_f_one_b),
    ),
)
