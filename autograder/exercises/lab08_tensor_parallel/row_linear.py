"""A linear layer split by rows: one sum in forward, and a bias that is whole on every rank."""

from __future__ import annotations

from functools import partial

import numpy as np

from autograder.exercise import Case, OnRanks, Plain
from autograder.exercise.signs import keeps_growing, never_waited
from autograder.exercises.common import normal
from autograder.exercises.lab08_tensor_parallel import shared
from autograder.guest.growth import STEPS


def draw(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same layer and gradient of y on all ranks; for each rank its part of x."""
    batch, fan_in, fan_out, *_ = case.params.values()
    whole = shared.draw_linear(rng, fan_in, fan_out)
    y_grad = normal(rng, *batch, fan_out, scale=fan_out**-0.5)
    own_shape = (*batch, fan_in // case.world_size)
    return [
        {"whole": whole, "x": normal(rng, *own_shape), "y.grad": y_grad}
        for _ in range(case.world_size)
    ]


SPLIT = {"weight": 1}
EXERCISE = OnRanks(
    answer="RowLinear",
    points=4,
    cases=(
        shared.linear_case(2, [4], 6, 5, more_steps=STEPS),
        shared.linear_case(4, [32, 2], 16, 4096, "4 ranks, 1 MiB of outputs"),
    ),
    inputs=draw,
    drive=partial(shared.drive_linear, SPLIT),
    tolerance=shared.TOLERANCE,
    budgets=shared.one_all_reduce(shared.FORWARD, "y", "out"),
    signs=shared.signs(
        "row i of W is column i of nn.Linear's weight, [out, in], so split it along dim 1; y has "
        "all columns, so keep the bias whole"
    ),
    rules=(never_waited, keeps_growing),
)
