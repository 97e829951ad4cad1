"""Interleaved 1F1B: several chunks of the model on each device."""

from autograder.exercises.lab08_pipeline import plans
from autograder.exercises.lab08_pipeline.plans import Look, plan_case


def in_flight(devices: int, micro_batches: int, chunks: int) -> list[int]:
    """Narayanan et al., arXiv 2104.04473: Megatron's warm-up and one more."""
    return [
        min(micro_batches * chunks, 2 * (devices - 1 - device) + (chunks - 1) * devices + 1)
        for device in range(devices)
    ]


def blocks_of_stages(look: Look) -> str | None:
    home = {stage: device for device, plan in enumerate(look.plan) for _, stage, _ in plan}
    if home and look.chunks > 1 and home == {stage: stage // look.chunks for stage in home}:
        return (
            "gives a device stages that follow each other: deal them out in turn, stage s to "
            "device s % devices"
        )
    return None


def wrong_order(look: Look) -> str | None:
    """Megatron's warm-up leaves time for sends; where they take none, so many fewer will do."""
    p, m, v = look.devices, look.micro_batches, look.chunks
    for device, plan in enumerate(look.plan):
        forwards, backwards = ([stage for kind, stage, _ in plan if kind == each] for each in "FB")
        if v > 1 and backwards[0] < p:
            return "starts backward with the first chunk: it comes through the last chunk first"
        if m > p and len(set(forwards[:m])) == 1:
            return "runs all micro-batches through one chunk before the next: go in rounds of p"
        before, behind = [kind for kind, *_ in plan].index("B"), p - 1 - device
        least, most = (min(m * v, (v - 1) * p + times * behind + 1) for times in (1, 2))
        if not least <= before <= most:
            how = "long" if before > most else "briefly"
            return f"warms up too {how}: 2(p - 1 - device) + (v - 1)p forwards come first"
    return None


EXERCISE = plans.emitted(
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
