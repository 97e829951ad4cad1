from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab08_tensor_parallel.hidden import shared
from autograder.exercises.lab08_tensor_parallel.row_linear import SPLIT
from autograder.exercises.lab08_tensor_parallel.shared import linear_case

CASES = (
    linear_case(2, [4], 10, 3),
    with_random_delays(linear_case(4, [1, 2, 3], 12, 11)),
    linear_case(4, [2, 3], 8, 7),
)
BOUNDARIES = shared.BOUNDARIES | {"divides": "2 ranks, 6 in, 5 out"}


def reference(case: Case, inputs: Any) -> list[Plain]:
    x = torch.cat([given["x"] for given in inputs], dim=-1)
    weights = inputs[0]["whole"]
    # First, so that another bias is the first difference.
    whole = {"bias": weights["bias"]}
    whole |= shared.run_whole_linear(case, weights, x, inputs[0]["y.grad"])
    return shared.shares(whole, case, SPLIT, {"x.grad": -1})


def own_partial_sum_only(case: Case, inputs: Any) -> list[Plain]:
    weight, bias = inputs[0]["whole"].values()
    pairs = zip(inputs, weight.chunk(case.world_size, dim=1), strict=True)
    return [{"y": given["x"] @ own.T + bias} for given, own in pairs]


def y_by(formula: Callable[[Tensor, Tensor, int], Tensor]) -> Callable[..., Plain]:
    """``formula``: (sum over all ranks, bias, N) -> y"""

    def outputs(case: Case, inputs: Any) -> Plain:
        bias = inputs[0]["whole"]["bias"]
        return {"y": formula(reference(case, inputs)[0]["y"] - bias, bias, case.world_size)}

    return outputs


def bias_of_rank_0(case: Case, inputs: Any) -> list[Plain]:
    right = reference(case, inputs)
    return [{"bias.grad": each["bias.grad"] * (rank == 0)} for rank, each in enumerate(right)]


MISTAKES = {
    "adds the bias before the all-reduce, so y contains it N times: add it once, after": y_by(
        lambda total, bias, n: total + n * bias
    ),
    "returns its own partial sum: y is the sum over all ranks": own_partial_sum_only,
    "averages the partial sums: y is their sum": y_by(lambda total, bias, n: total / n + bias),
    "misses all or a part of its bias's gradient: add the whole bias on every rank, after the "
    "all-reduce, so that all copies stay equal": (
        shared.scaled(reference, lambda case: 1 / case.world_size, "bias.grad"),
        bias_of_rank_0,
    ),
    "sums the gradient in backward: every rank already has all of y's gradient, so all gradients "
    "come out N times too large": (
        shared.scaled(reference, lambda case: case.world_size, "x.grad", "weight.grad")
    ),
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "partial.clone(memory_format=torch.contiguous_format)",
        "partial.clone()",
        "F.linear's output is contiguous",
    ),
    EquivalentAnswer(
        "return SumOverRanks.apply(F.linear(x, self.weight)) + self.bias",
        "y = F.linear(x, self.weight)\n"
        "        total = y.detach().clone()\n"
        "        dist.all_reduce(total)\n"
        "        return y + (total - y).detach() + self.bias",
        "has the value of the total, and the gradient of its own partial sum",
    ),
)
