"""1F1B: backwards start as soon as the first gradient can arrive."""

from autograder.exercises.lab09_pipeline import plans
from shardlab.simulate.pipeline import one_f_one_b


def in_flight(devices: int, micro_batches: int) -> list[int]:
    return [min(micro_batches, devices - device) for device in range(devices)]


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
        plans.wrong_warm_up(one_f_one_b, "devices - 1 - stage"),
        plans.cannot_run,
        plans.differs_from("1F1B", one_f_one_b),
    ),
)
