"""A linear layer split by rows: one sum in forward, and a bias that is whole on every rank."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from autograder.exercise import Attempt, Case, OnRanks, Plain, equal
from autograder.exercise.signs import MistakeText, keeps_growing, never_waited, on_each_rank
from autograder.exercises.lab07_tensor_parallel import shared
from autograder.guest.growth import STEPS


def draw(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same layer and gradient of y on all ranks; for each rank its part of x."""
    batch, fan_in, fan_out, *_ = case.params.values()
    whole = shared.draw_linear(rng, fan_in, fan_out)
    y_grad = shared.normal(rng, *batch, fan_out, scale=fan_out**-0.5)
    own_shape = (*batch, fan_in // case.world_size)
    return [
        {"whole": whole, "x": shared.normal(rng, *own_shape), "y.grad": y_grad}
        for _ in range(case.world_size)
    ]


@on_each_rank
def bias_of_other_ranks(rank: int, attempt: Attempt) -> MistakeText:
    """A bias that only some ranks train: the other copies would become stale."""
    gradients = [each.get("bias.grad") for each in attempt.outputs]
    trained = [gradient is not None and bool(gradient.any()) for gradient in gradients]
    if trained[rank] or not any(trained):
        return None
    return (
        "gets no gradient for its bias: add the bias on every rank, after the all-reduce, so that "
        "all copies stay equal"
    )


@on_each_rank
def other_bias(output: Any, expected: Any) -> MistakeText:
    if "bias" not in output or equal(expected["bias"], output["bias"]):
        return None
    return (
        "holds another bias than the layer's: keep it whole and equal on every rank, and add it "
        "after the all-reduce"
    )


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
        shared.does_not_multiply("splits x again: x is this rank's part already"),
        bias_of_other_ranks,
        other_bias,
        forward="communicates more than once in forward: one sum is enough",
        backward="communicates in backward: every rank already has all of y's gradient",
    ),
    rules=(never_waited, keeps_growing),
)
