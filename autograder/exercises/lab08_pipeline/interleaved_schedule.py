"""Interleaved 1F1B: several chunks of the model on each device."""

from autograder.exercises.lab08_pipeline import plans
from autograder.exercises.lab08_pipeline.plans import Submitted, plan_case


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
            "gives a device consecutive stages: deal them out in turn, stage s to device "
            "s % devices"
        )
    return None


def wrong_order(submitted: Submitted) -> str | None:
    """Accepts warm-ups shorter than Megatron's: in a simulation, sends take no time."""
    p, m, v = submitted.devices, submitted.micro_batches, submitted.chunks
    for device, plan in enumerate(submitted.plan):
        forwards, backwards = ([stage for kind, stage, _ in plan if kind == each] for each in "FB")
        if v > 1 and backwards[0] < p:
            return "starts the backward with the first chunk: gradients start in the last chunk"
        if m > p and len(set(forwards[:m])) == 1:
            return "runs all micro-batches through one chunk before the next: go in rounds of p"
        before, behind = [kind for kind, *_ in plan].index("B"), p - 1 - device
        least, most = (min(m * v, (v - 1) * p + times * behind + 1) for times in (1, 2))
        if not least <= before <= most:
            how = "long" if before > most else "short"
            return f"has too {how} a warm-up: 2(p - 1 - device) + (v - 1)p forwards come first"
    return None


EXERCISE = plans.schedule_exercise(
    "interleaved_schedule",
    points=5,
    cases=(
        plan_case("2 devices of 2 chunks, 4 micro-batches", (2, 4, 2)),
        plan_case("4 devices of 2 chunks, 8 micro-batches", (4, 8, 2)),
    ),
    budgets=(
        plans.fills_and_drains("of one chunk"),
        plans.holds("device i holds ≤ 2(p - 1 - i) + (v - 1)p + 1", in_flight, unit="chunks"),
    ),
    rules=(blocks_of_stages, *plans.WRONG_CONTENT, wrong_order, plans.cannot_run),
)
