"""A linear layer split by columns: nothing is sent in forward, x's gradient in backward."""

from __future__ import annotations

import numpy as np

from autograder.exercise import Case, OnRanks, Plain
from autograder.exercise.signs import raises
from autograder.exercises.lab07_tensor_parallel import shared


def draw(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same layer and input on all ranks; for each rank the gradient of its part of y."""
    batch, fan_in, fan_out = case.params.values()
    whole, x = shared.draw_linear(rng, fan_in, fan_out), shared.normal(rng, *batch, fan_in)
    return [
        {"whole": whole, "x": x, "y.grad": shared.normal(rng, *batch, fan_out // case.world_size)}
        for _ in range(case.world_size)
    ]


EXERCISE = OnRanks(
    answer="ColumnLinear",
    points=4,
    cases=(shared.linear_case(2, [3], 6, 4), shared.linear_case(4, [2, 3], 5, 12)),
    inputs=draw,
    drive=shared.drive_linear,
    tolerance=shared.NEAR,
    budgets=shared.one_all_reduce(shared.BACKWARD, "x's gradient", "in"),
    signs=shared.signs(
        raises(
            "must match the",
            "adds the whole bias to its own columns: add only their part of it",
        ),
        forward="communicates in forward: every rank has all of x, so no communication is needed",
        backward="communicates more than once in backward: only x's gradient is a sum over ranks",
    ),
)
