"""1F1B: backwards begin as soon as the first gradient can be there."""

from autograder.exercises.lab08_pipeline import plans
from autograder.exercises.lab08_pipeline.plans import Look


def in_flight(devices: int, micro_batches: int) -> list[int]:
    return [min(micro_batches, devices - device) for device in range(devices)]


def wrong_warm_up(look: Look) -> str | None:
    held, p, m = look.in_flight, look.devices, look.micro_batches
    right = in_flight(p, m)
    if held == right:
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


EXERCISE = plans.emitted(
    "one_f_one_b_schedule",
    points=4,
    cases=plans.CASES,
    budgets=(
        plans.fills_and_drains("on each device"),
        plans.holds("device i holds ≤ p - i micro-batches", in_flight),
    ),
    rules=(*plans.WRONG_CONTENT, plans.cannot_run, plans.one_at_a_time, wrong_warm_up),
)
