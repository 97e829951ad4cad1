from typing import Any

import torch

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab08_tensor_parallel.column_linear import SPLIT
from autograder.exercises.lab08_tensor_parallel.hidden import shared
from autograder.exercises.lab08_tensor_parallel.shared import linear_case

CASES = (
    linear_case(2, [4], 7, 10),
    with_random_delays(linear_case(4, [1, 2, 3], 10, 8)),
    linear_case(4, [2, 3], 7, 12),
)
BOUNDARIES = shared.BOUNDARIES | {"divides": "2 ranks, 6 in, 4 out"}


def reference(case: Case, inputs: Any) -> list[Plain]:
    y_grad = torch.cat([given["y.grad"] for given in inputs], dim=-1)
    whole = shared.run_whole_linear(case, inputs[0]["whole"], inputs[0]["x"], y_grad)
    return shared.shares(whole, case, SPLIT, {"y": -1})


def own_part_only(case: Case, inputs: Any) -> list[Plain]:
    weights = inputs[0]["whole"]["weight"].chunk(case.world_size)
    pairs = zip(inputs, weights, strict=True)
    return [{"x.grad": given["y.grad"] @ weight + given["x"]} for given, weight in pairs]


def sums_what_others_added(case: Case, inputs: Any) -> list[Plain]:
    n = case.world_size
    return [
        {"x.grad": right["x.grad"] + (n - 1) * given["x"]}
        for right, given in zip(reference(case, inputs), inputs, strict=True)
    ]


MISTAKES = {
    "gives x no gradient: backward has to return it, and forward must not detach x": (
        lambda case, inputs: [{"x.grad": given["x"]} for given in inputs]
    ),
    "has x's gradient only from its own columns: x went to all ranks, so sum the gradients of all "
    "of them in backward, and return the sum": own_part_only,
    "averages x's gradient: it is the sum over the ranks, since each has different columns": (
        shared.scaled(reference, lambda case: 1 / case.world_size, "x.grad")
    ),
    "sums all of x's gradient, not only this layer's: x may be used elsewhere too, so do not hook "
    "x itself": sums_what_others_added,
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer("return x.view_as(x)", "return x.clone()", "a copy has the same values"),
    EquivalentAnswer(
        "y_grad.clone(memory_format=torch.contiguous_format)",
        "y_grad.clone()",
        "the gradient that F.linear computes is contiguous",
    ),
    EquivalentAnswer(
        "self.weight = nn.Parameter(linear.weight.chunk(world_size)[rank].detach().clone())",
        "linear.weight.data = linear.weight.data.chunk(world_size)[rank].clone()\n"
        "        self.weight = linear.weight",
        "keeps the parameter object, but only the share's memory",
    ),
    EquivalentAnswer(
        "F.linear(CopyToRanks.apply(x), self.weight, self.bias)",
        "CopyToRanks.apply(x) @ self.weight.T + self.bias",
        "is what F.linear computes",
    ),
)
