"""1F1B: backwards start as soon as the first gradient can arrive."""

from autograder.exercises.lab08_pipeline import plans
from autograder.exercises.lab08_pipeline.plans import Submitted
from shardlab.simulate.pipeline import one_f_one_b


def in_flight(devices: int, micro_batches: int) -> list[int]:
    return [min(micro_batches, devices - device) for device in range(devices)]


def wrong_order(submitted: Submitted) -> str | None:
    """Within all forwards of a device, or all its backwards."""
    for kind, name in (("F", "forwards"), ("B", "backwards")):
        for plan in submitted.plan:
            order = [k for each, _, k in plan if each == kind]
            if order != sorted(order):
                return f"has {name} out of order: they go from micro-batch 0 upward on each device"
    return None


def wrong_warm_up(submitted: Submitted) -> str | None:
    """Each device alternates as in 1F1B, but starts to do so too early or too late."""
    p, m = submitted.devices, submitted.micro_batches
    warm_up = [[kind for kind, *_ in plan].index("B") - 1 for plan in submitted.plan]
    right = [min(m, p - device) - 1 for device in range(p)]
    alternating = ["F" * each + "FB" * (m - each) + "B" * each for each in warm_up]
    if ["".join(kind for kind, *_ in plan) for plan in submitted.plan] != alternating:
        return None
    if warm_up == right:
        return None
    if p > 1 and m > 1 and warm_up == [m - 1] * p:
        return (
            "has too long a warm-up: all forwards before any backward is GPipe, and holds all "
            "micro-batches; here backwards start as soon as the first gradient can arrive"
        )
    if warm_up == [min(m - 1, p - device) for device in range(p)]:
        return "has too long a warm-up, by one forward: devices - 1 - stage of them come first"
    if warm_up == [min(m, p) - 1] * p:
        return "has too long a warm-up: the later the stage, the sooner its first backward"
    if warm_up == right[::-1]:
        return "has too long a warm-up on the last stages: the first waits longest for a gradient"
    if any(one > other for one, other in zip(warm_up, right, strict=True)):
        return "has too long a warm-up: devices - 1 - stage forwards come before the first pair"
    return "has too short a warm-up: devices - 1 - stage forwards come before the first pair"


EXERCISE = plans.schedule_exercise(
    "one_f_one_b_schedule",
    points=4,
    cases=plans.CASES,
    budgets=(
        plans.fills_and_drains(),
        plans.holds("device i holds ≤ p - i micro-batches", in_flight),
    ),
    rules=(
        *plans.WRONG_CONTENT,
        wrong_order,
        plans.cannot_run,
        plans.one_at_a_time,
        wrong_warm_up,
        plans.differs_from("1F1B", one_f_one_b),
    ),
)
