"""A linear layer split by columns: nothing is sent in forward, x's gradient in backward."""

from __future__ import annotations

from functools import partial

import numpy as np

from autograder.exercise import Case, OnRanks, Plain
from autograder.exercise.signs import keeps_growing, never_waited
from autograder.exercises.lab07_tensor_parallel import shared
from autograder.guest.growth import STEPS


def draw(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same layer and input on all ranks; for each rank the gradient of its part of y."""
    batch, fan_in, fan_out, *_ = case.params.values()
    whole, x = shared.draw_linear(rng, fan_in, fan_out), shared.normal(rng, *batch, fan_in)
    return [
        {"whole": whole, "x": x, "y.grad": shared.normal(rng, *batch, fan_out // case.world_size)}
        for _ in range(case.world_size)
    ]


SPLIT = {"weight": 0, "bias": 0}
EXERCISE = OnRanks(
    answer="ColumnLinear",
    points=4,
    cases=(
        shared.linear_case(2, [3], 6, 4, more_steps=STEPS),
        shared.linear_case(4, [32, 2], 4096, 16, "4 ranks, 1 MiB of inputs"),
    ),
    inputs=draw,
    drive=partial(shared.drive_linear, SPLIT),
    tolerance=shared.TOLERANCE,
    budgets=shared.one_all_reduce(shared.BACKWARD, "x's gradient", "in"),
    signs=shared.signs(
        shared.does_not_multiply("splits x: every rank has all of x, and multiplies all of it"),
        forward="communicates in forward: every rank has all of x, so no communication is needed",
        backward="communicates more than once in backward: only x's gradient is a sum over ranks",
    ),
    rules=(never_waited, keeps_growing),
)
