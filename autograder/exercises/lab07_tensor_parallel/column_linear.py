"""A linear layer split by columns: nothing is sent in forward, x's gradient in backward."""

from __future__ import annotations

import numpy as np

from autograder.exercise import Case, OnRanks, Plain
from autograder.exercises.lab07_tensor_parallel import shared


def draw(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same layer and input on all ranks; for each rank the gradient of its part of y."""
    batch, fan_in, fan_out = case.params.values()
    whole, x = shared.draw_linear(rng, fan_in, fan_out), shared.normal(rng, *batch, fan_in)
    return [
        {"whole": whole, "x": x, "y.grad": shared.normal(rng, *batch, fan_out // case.world_size)}
        for _ in range(case.world_size)
    ]


def shapes(case: Case, x: tuple[int, int], w: tuple[int, int]) -> str | None:
    fan_in, own = case.params["in"], case.params["out"] // case.world_size
    if x[1] == fan_in and w[0] < fan_in and w[1] == case.params["out"]:
        return (
            "splits the weight along the wrong dimension: nn.Linear's weight is [out, in] and y = "
            "x @ weight.T, so columns of the product are rows of the weight"
        )
    if x[1] < fan_in and w[0] == fan_in:
        return "splits x: every rank has all of x, and multiplies all of it"
    if x[1] == fan_in and w == (own, fan_in):
        return "multiplies by the weight as it is: nn.Linear's weight is [out, in], so transpose it"
    return None


EXERCISE = OnRanks(
    answer="ColumnLinear",
    points=4,
    cases=(
        shared.linear_case(2, [3], 6, 4),
        shared.linear_case(4, [32, 2], 4096, 16, "4 ranks, 1 MiB of inputs"),
    ),
    inputs=draw,
    drive=shared.drive_linear,
    tolerance=shared.NEAR,
    budgets=shared.one_all_reduce(shared.BACKWARD, "x's gradient", "in"),
    signs=shared.signs(
        shared.shapes_do_not_fit(shapes),
        shared.bias_does_not_fit(
            "adds the whole bias to its own columns: add only their part of it",
            lambda case, less, more: (
                (less, more) == (case.params["out"] // case.world_size, case.params["out"])
            ),
        ),
        forward="communicates in forward: every rank has all of x, so no communication is needed",
        backward="communicates more than once in backward: only x's gradient is a sum over ranks",
    ),
)
