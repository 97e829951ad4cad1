"""1F1B: backwards start as soon as the first gradient can arrive."""

from autograder.exercises.lab08_pipeline import plans
from autograder.exercises.lab08_pipeline.plans import Submitted


def in_flight(devices: int, micro_batches: int) -> list[int]:
    return [min(micro_batches, devices - device) for device in range(devices)]


def wrong_warm_up(submitted: Submitted) -> str | None:
    held, p, m = submitted.in_flight, submitted.devices, submitted.micro_batches
    right = in_flight(p, m)
    if held == right:
        return None
    if p > 1 and m > 1 and held == [m] * p:
        return (
            "has too long a warm-up: all forwards before any backward is GPipe, and holds all "
            "micro-batches; here backwards start as soon as the first gradient can arrive"
        )
    if held == [min(m, p - device + 1) for device in range(p)]:
        return "has too long a warm-up, by one forward: devices - 1 - stage of them come first"
    if held == [min(m, p)] * p:
        return "has too long a warm-up: the later the stage, the sooner its first backward"
    if held == right[::-1]:
        return "has too long a warm-up on the last stages: the first waits longest for a gradient"
    if any(one > other for one, other in zip(held, right, strict=True)):
        return "holds more activations than 1F1B: at most devices - stage"
    return "has too short a warm-up: devices - 1 - stage forwards come before the first pair"


EXERCISE = plans.schedule_exercise(
    "one_f_one_b_schedule",
    points=4,
    cases=plans.CASES,
    budgets=(
        plans.fills_and_drains("on each device"),
        plans.holds("device i holds ≤ p - i micro-batches", in_flight),
    ),
    rules=(*plans.WRONG_CONTENT, plans.cannot_run, plans.one_at_a_time, wrong_warm_up),
)
