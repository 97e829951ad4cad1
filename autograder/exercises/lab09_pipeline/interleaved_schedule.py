"""Interleaved 1F1B: several chunks of the model on each device."""

from autograder.exercise import Case
from autograder.exercises.lab09_pipeline import plans
from autograder.exercises.lab09_pipeline.plans import plan_case
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
        *plans.WRONG_CONTENT,
        plans.wrong_warm_up(interleaved_one_f_one_b, "2(p - 1 - device) + (v - 1)p"),
        plans.cannot_run,
        plans.differs_from("Megatron's schedule", interleaved_one_f_one_b),
    ),
)
