"""Lab 07: a linear layer cut by its columns, and one cut by its rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autograder.exercise import Attempt, Case, Exercise, Finding, Plain
from autograder.exercises.outputs import finished
from autograder.exercises.tensor_parallel import (
    BACKWARD,
    FLOAT_BYTES,
    FORWARD,
    NEAR,
    Slips,
    as_if,
    counted,
    does_not_fit,
    draw_linear,
    exchanges_too_much,
    handed_over,
    no_gradient,
    normal,
    number_of_ranks,
    on_the_wire,
    one_over_ranks,
    other_parameters,
    scaled,
    share,
    there_and_back,
    what_is_right,
)
from autograder.exercises.zero import linear_of
from shardlab.errors import RankError

ALL_REDUCE = frozenset({"all_reduce"})


def linear_case(
    world_size: int,
    batch: list[int],
    fan_in: int,
    fan_out: int,
    name: str = "",
    hidden: bool = False,
    weight: float = 1.0,
) -> Case:
    """``batch``: all dimensions of x before its last one."""
    name = name or f"{world_size} ranks, {fan_in} in, {fan_out} out"
    params = {"batch": batch, "in": fan_in, "out": fan_out}
    return Case(name, world_size, params, hidden, weight)


def bias_does_not_fit(mistake: str) -> Callable[[Attempt], Finding | None]:
    def diagnose(attempt: Attempt) -> Finding | None:
        error = attempt.error
        if isinstance(error, RankError) and "must match the" in error.message:
            return Finding(f"rank {error.rank}", mistake)
        return None

    return diagnose


def drive_linear(subject: Any, given: Any, case: Case) -> Plain:
    whole = given.pop("whole")
    return there_and_back(subject(linear_of(whole["weight"], whole["bias"])), given)


# ---- ColumnLinear -------------------------------------------------------------------------------


def draw_columns(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same layer and input everywhere; to each rank the gradient of its part of y."""
    batch, fan_in, fan_out = (case.params[key] for key in ("batch", "in", "out"))
    whole, x = draw_linear(rng, fan_in, fan_out), normal(rng, *batch, fan_in)
    return [
        {"whole": whole, "x": x, "y.grad": normal(rng, *batch, fan_out // case.world_size)}
        for _ in range(case.world_size)
    ]


def expect_columns(case: Case, inputs: Any) -> list[Plain]:
    weight, bias = (inputs[0]["whole"][name].clone().requires_grad_() for name in WEIGHT_AND_BIAS)
    x = inputs[0]["x"].clone().requires_grad_()
    y = torch.nn.functional.linear(x, weight, bias)
    y_grad = torch.cat([given["y.grad"] for given in inputs], dim=-1)
    x_grad, weight_grad, bias_grad = torch.autograd.grad(y, [x, weight, bias], y_grad)
    return [
        what_is_right(
            share(y.detach(), rank, case, dim=-1),
            x_grad,
            {"weight": share(weight_grad, rank, case), "bias": share(bias_grad, rank, case)},
        )
        for rank in range(case.world_size)
    ]


WEIGHT_AND_BIAS = ("weight", "bias")


def x_bytes(case: Case) -> int:
    return FLOAT_BYTES * math.prod(case.params["batch"]) * case.params["in"]


def own_part_only(attempt: Attempt) -> list[dict[str, Tensor]]:
    """x's gradient from a rank's own columns."""
    return [
        {"x.grad": given["y.grad"] @ share(given["whole"]["weight"], rank, attempt.case)}
        for rank, given in enumerate(attempt.inputs)
    ]


def every_nth_row(attempt: Attempt) -> list[dict[str, Tensor]]:
    n = attempt.case.world_size
    return [
        {
            "y": torch.nn.functional.linear(
                given["x"], *(given["whole"][name][rank::n] for name in WEIGHT_AND_BIAS)
            )
        }
        for rank, given in enumerate(attempt.inputs)
    ]


def summed_forward(attempt: Attempt) -> list[dict[str, Tensor]]:
    parts = [right["y"] for right in attempt.expected]
    return [{"y": torch.stack(parts).sum(dim=0)}] * len(parts)


def gathers_its_output(attempt: Attempt) -> Finding | None:
    for rank, output in finished(attempt):
        y, wanted = output["y"], attempt.expected[rank]["y"]
        whole = (*wanted.shape[:-1], attempt.case.params["out"])
        if isinstance(y, Tensor) and tuple(y.shape) == whole != tuple(wanted.shape):
            return Finding(
                f"rank {rank}",
                "returns the whole output: a rank has its own columns, and the next layer takes "
                "them as they are",
                f"its last dimension is {y.shape[-1]}, expected {wanted.shape[-1]}",
            )
    return None


COLUMN_SLIPS: Slips = (
    (
        own_part_only,
        "has x's gradient from its own columns alone: x went to all ranks, so in backward "
        "add up what comes back from all of them",
    ),
    (
        scaled("x.grad", by=one_over_ranks),
        "averages x's gradient: it is the sum over the ranks, each has other columns",
    ),
    (
        scaled("x.grad", by=number_of_ranks),
        "adds x's gradient up twice: N times what it should be",
    ),
    (every_nth_row, "takes every N-th column: rank r has the r-th block of them"),
    (summed_forward, "adds up the parts of y: they are other columns of it, not summands"),
)

COLUMN_LINEAR = Exercise(
    name="tensor_parallel.ColumnLinear",
    points=4,
    cases=(
        linear_case(2, [3], 6, 4),
        linear_case(4, [2, 3], 5, 12),
        linear_case(2, [4], 7, 10, hidden=True),
        linear_case(4, [1, 2, 3], 9, 8, hidden=True),
        linear_case(4, [32, 2], 4096, 16, "4 ranks, 1 MiB of inputs", hidden=True),
    ),
    draw=draw_columns,
    drive=drive_linear,
    expect=expect_columns,
    tolerance=NEAR,
    budgets=(
        counted(FORWARD, 0),
        counted(BACKWARD, 1),
        handed_over("hands over no more than x's gradient", x_bytes),
        on_the_wire("sends ≤ 1.02 × ideal bytes per rank", x_bytes),
    ),
    diagnoses=(
        does_not_fit,
        bias_does_not_fit("adds the whole bias to its own columns: they have their own part of it"),
        gathers_its_output,
        other_parameters,
        no_gradient,
        as_if(*COLUMN_SLIPS),
        exchanges_too_much(
            FORWARD, "communicates in forward: x is there on every rank, so its columns need nobody"
        ),
        exchanges_too_much(
            BACKWARD, "communicates more than once in backward: only x's gradient is a sum"
        ),
    ),
)


# ---- RowLinear ----------------------------------------------------------------------------------


def draw_rows(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same layer everywhere; to each rank its part of x, and to all the gradient of y."""
    batch, fan_in, fan_out = (case.params[key] for key in ("batch", "in", "out"))
    whole = draw_linear(rng, fan_in, fan_out)
    y_grad = normal(rng, *batch, fan_out, scale=fan_out**-0.5)
    return [
        {"whole": whole, "x": normal(rng, *batch, fan_in // case.world_size), "y.grad": y_grad}
        for _ in range(case.world_size)
    ]


def expect_rows(case: Case, inputs: Any) -> list[Plain]:
    weight, bias = (inputs[0]["whole"][name].clone().requires_grad_() for name in WEIGHT_AND_BIAS)
    x = torch.cat([given["x"] for given in inputs], dim=-1).requires_grad_()
    y = torch.nn.functional.linear(x, weight, bias)
    gradients = torch.autograd.grad(y, [x, weight, bias], inputs[0]["y.grad"])
    x_grad, weight_grad, bias_grad = gradients
    return [
        what_is_right(
            y.detach(),
            share(x_grad, rank, case, dim=-1),
            {"weight": share(weight_grad, rank, case, dim=1), "bias": bias_grad},
        )
        for rank in range(case.world_size)
    ]


def y_bytes(case: Case) -> int:
    return FLOAT_BYTES * math.prod(case.params["batch"]) * case.params["out"]


def bias_times(attempt: Attempt, times: float) -> list[Tensor]:
    """By rank, y with so many biases more than the one that belongs there."""
    return [right["y"] + times * attempt.inputs[0]["whole"]["bias"] for right in attempt.expected]


def bias_on_every_rank(attempt: Attempt) -> list[dict[str, Tensor]]:
    return [{"y": y} for y in bias_times(attempt, attempt.case.world_size - 1)]


def no_bias(attempt: Attempt) -> list[dict[str, Tensor]]:
    return [{"y": y} for y in bias_times(attempt, -1)]


def own_summand_only(attempt: Attempt) -> list[dict[str, Tensor]]:
    outputs = []
    for rank, given in enumerate(attempt.inputs):
        weight = share(given["whole"]["weight"], rank, attempt.case, dim=1)
        outputs.append({"y": given["x"] @ weight.T + given["whole"]["bias"]})
    return outputs


def mean_of_summands(attempt: Attempt) -> list[dict[str, Tensor]]:
    bias = attempt.inputs[0]["whole"]["bias"]
    return [
        {"y": (right["y"] - bias) / attempt.case.world_size + bias} for right in attempt.expected
    ]


def bias_of_one_rank(attempt: Attempt) -> Finding | None:
    """A bias that only one rank trains: the others' would stay behind."""
    without = [
        rank
        for rank, output in finished(attempt)
        if output["y"].shape == attempt.expected[rank]["y"].shape
        and ((bias := output.get("bias.grad")) is None or not bias.any())
    ]
    if 0 < len(without) < attempt.case.world_size:
        mistake = (
            "gets no gradient in its bias: add the bias on every rank, after the all-reduce, and "
            "all copies stay alike"
        )
        return Finding(f"rank {without[0]}", mistake)
    return None


ROW_SLIPS: Slips = (
    (
        bias_on_every_rank,
        "adds the bias on every rank before the all-reduce, so that it is there N times: "
        "add it once, after",
    ),
    (no_bias, "leaves out the bias"),
    (own_summand_only, "returns its own summand: y is the sum over all ranks"),
    (mean_of_summands, "averages the summands: y is their sum"),
    (
        scaled("bias.grad", by=one_over_ranks),
        "adds a share of the bias on each rank: y is right, but the bias's gradient is "
        "1/N of what it should be",
    ),
    (
        scaled("x.grad", "weight.grad", by=number_of_ranks),
        "adds up the gradient in backward: y's gradient is whole on every rank already, "
        "and so all gradients come out N times too large",
    ),
    (
        scaled("bias.grad", by=number_of_ranks),
        "adds up the bias's gradient: it is whole on every rank already",
    ),
)

ROW_LINEAR = Exercise(
    name="tensor_parallel.RowLinear",
    points=4,
    cases=(
        linear_case(2, [3], 6, 5),
        linear_case(4, [2, 3], 8, 7),
        linear_case(2, [4], 10, 3, hidden=True),
        linear_case(4, [1, 2, 3], 12, 11, hidden=True),
        linear_case(4, [32, 2], 16, 4096, "4 ranks, 1 MiB of outputs", hidden=True),
    ),
    draw=draw_rows,
    drive=drive_linear,
    expect=expect_rows,
    tolerance=NEAR,
    budgets=(
        counted(FORWARD, 1),
        counted(BACKWARD, 0),
        handed_over("hands over no more than y", y_bytes),
        on_the_wire("sends ≤ 1.02 × ideal bytes per rank", y_bytes),
    ),
    diagnoses=(
        does_not_fit,
        bias_does_not_fit("adds a part of the bias: y has all columns, so the bias stays whole"),
        other_parameters,
        bias_of_one_rank,
        no_gradient,
        as_if(*ROW_SLIPS),
        exchanges_too_much(FORWARD, "communicates more than once in forward: one sum is enough"),
        exchanges_too_much(
            BACKWARD, "communicates in backward: y's gradient is whole on every rank already"
        ),
    ),
)
