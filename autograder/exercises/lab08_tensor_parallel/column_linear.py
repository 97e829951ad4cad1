"""A linear layer split by columns: nothing is sent in forward, x's gradient in backward."""

from __future__ import annotations

from functools import partial

import numpy as np

from autograder.exercise import Case, OnRanks, Plain
from autograder.exercise.signs import keeps_growing, never_waited
from autograder.exercises.common import normal
from autograder.exercises.lab08_tensor_parallel import shared
from autograder.guest.growth import STEPS


def draw(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same layer and input on all ranks; for each rank the gradient of its part of y."""
    batch, fan_in, fan_out, *_ = case.params.values()
    whole, x = shared.draw_linear(rng, fan_in, fan_out), normal(rng, *batch, fan_in)
    return [
        {"whole": whole, "x": x, "y.grad": normal(rng, *batch, fan_out // case.world_size)}
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
        "nn.Linear's weight is [out, in] and y = x @ weight.T, so columns of the product are rows "
        "of the weight, and elements of the bias"
    ),
    rules=(never_waited, keeps_growing),
)
