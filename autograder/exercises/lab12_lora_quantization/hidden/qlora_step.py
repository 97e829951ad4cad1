"""The reference: forward and backward of the chain, written out with dequantized weights."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab12_lora_quantization.qlora_step import (
    BLOCK,
    LR,
    STEPS,
    adapters_case,
)
from shardlab.estimate.quantization import nf4_code_points

CASES = (
    with_random_delays(
        adapters_case("3 ranks, layers of 48, 32 and 36", 3, [48, 32, 36], r=2, alpha=5.0)
    ),
    adapters_case("2 ranks, 12 layers of 1 MiB in fp32", 2, [512] * 13, r=4, alpha=1.0),
)
BOUNDARIES = {
    "divides": "not tested: no tensor is divided among ranks",
    "does not divide": "not tested, as above",
    "one rank": "1 rank, one layer",
    "more ranks than elements": "not tested, as above",
    "one layer": "1 rank, one layer",
    "square layers": "2 ranks, 3 layers",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "dist.all_reduce(grad)\n        with torch.no_grad():\n"
        "            adapter -= lr * grad / dist.get_world_size()",
        "dist.all_reduce(grad, op=dist.ReduceOp.AVG)\n        with torch.no_grad():\n"
        "            adapter -= lr * grad",
        "the collective takes the mean",
    ),
)

Gradients = list[Tensor]  # of each layer's A and B, in this order
# (the ranks' gradients, this rank, the previous update)  ->  the update
Rule = Callable[[Sequence[Gradients], int, Gradients | None], Gradients]
Weight = Callable[[Any, tuple[int, int]], Tensor]  # a layer, (out, in)  ->  [out, in]


def unpacked(layer: Any) -> Tensor:
    """Codes from 0 to 15; the first of two weights is in the high nibble."""
    packed = layer["packed"]
    return torch.stack([packed >> 4, packed & 15], dim=1).flatten().long()


def dequantized(layer: Any, shape: tuple[int, int]) -> Tensor:
    values = torch.tensor(nf4_code_points())[unpacked(layer)].view(-1, BLOCK)
    return (values * layer["absmax"][:, None]).view(shape)


def without_absmax(layer: Any, shape: tuple[int, int]) -> Tensor:
    return torch.tensor(nf4_code_points())[unpacked(layer)].view(shape)


def codes(layer: Any, shape: tuple[int, int]) -> Tensor:
    return unpacked(layer).float().view(shape)


def zeros(layer: Any, shape: tuple[int, int]) -> Tensor:
    return torch.zeros(shape)


def other_shape(layer: Any, shape: tuple[int, int]) -> Tensor:
    return dequantized(layer, shape).view(shape[::-1]).T


def transposed_if_square(layer: Any, shape: tuple[int, int]) -> Tensor:
    weight = dequantized(layer, shape)
    return weight.T if shape[0] == shape[1] else weight


def identity_if_square(layer: Any, shape: tuple[int, int]) -> Tensor:
    return torch.eye(shape[0]) if shape[0] == shape[1] else dequantized(layer, shape)


def alpha_over_r(alpha: float, layer: Any) -> float:
    return alpha / len(layer["A"])


Scale = Callable[[float, Any], float]


def gradients_of(
    layers: Any,
    batch: Sequence[Tensor],
    alpha: float,
    scale: Scale = alpha_over_r,
    adapter_scale: Scale | None = None,
    input_scale: Scale | None = None,
    forward: Weight = dequantized,
    backward: Weight = dequantized,
) -> Gradients:
    """``adapter_scale``, ``input_scale``: scales of the adapters' and of x's gradients in backward;
    default: as in forward.  ``backward``: the weight with which x's gradient is computed."""
    x, targets = batch
    xs = []
    for layer in layers:
        shape = len(layer["B"]), layer["A"].shape[1]
        low_rank = x @ layer["A"].T @ layer["B"].T
        xs.append(x)
        x = x @ forward(layer, shape).T + scale(alpha, layer) * low_rank
    y_grad = 2 * (x - targets) / len(x)
    found: Gradients = []
    for layer, x in zip(layers[::-1], xs[::-1], strict=True):
        shape = len(layer["B"]), layer["A"].shape[1]
        own, below = ((each or scale)(alpha, layer) for each in (adapter_scale, input_scale))
        a_grad = own * (y_grad @ layer["B"]).T @ x
        b_grad = own * y_grad.T @ (x @ layer["A"].T)
        found = [a_grad, b_grad, *found]
        y_grad = y_grad @ backward(layer, shape) + below * y_grad @ layer["B"] @ layer["A"]
    return found


def mean(of_ranks: Sequence[Gradients], rank: int, before: Gradients | None) -> Gradients:
    return [sum(each) / len(of_ranks) for each in zip(*of_ranks, strict=True)]


def times(factor: Callable[[int], float], of: Rule = mean) -> Rule:
    """``factor``: a function of the number of ranks."""
    return lambda of_ranks, rank, before: [
        factor(len(of_ranks)) * each for each in of(of_ranks, rank, before)
    ]


def own(of_ranks: Sequence[Gradients], rank: int, before: Gradients | None) -> Gradients:
    return of_ranks[rank]


def masked(*keeps: float) -> Rule:
    """``keeps``: factors for the gradients of A and of B."""
    return lambda of_ranks, rank, before: [
        keeps[i % 2] * each for i, each in enumerate(mean(of_ranks, rank, before))
    ]


def keeps_old(of_ranks: Sequence[Gradients], rank: int, before: Gradients | None) -> Gradients:
    new = mean(of_ranks, rank, None)
    return [a + b for a, b in zip(new, before, strict=True)] if before else new


def keeps_sums(of_ranks: Sequence[Gradients], rank: int, before: Gradients | None) -> Gradients:
    """The previous step's gradients were summed in place, and each rank adds its own to them."""
    new = mean(of_ranks, rank, None)
    n = len(of_ranks)
    return [a + n * b for a, b in zip(new, before, strict=True)] if before else new


def only_one_averaged(averaged: int, divides: bool) -> Rule:
    """A's gradients are averaged (0), or B's (1); the others are the rank's own.

    ``divides``: the others are divided by the number of ranks, too.
    """
    return lambda of_ranks, rank, before: [
        each if i % 2 == averaged else of_ranks[rank][i] / (len(of_ranks) if divides else 1)
        for i, each in enumerate(mean(of_ranks, rank, before))
    ]


def reference(case: Case, inputs: Any, rule: Rule = mean, **changes: Any) -> list[Plain]:
    layers = [[dict(layer) for layer in given["layers"]] for given in inputs]
    steps: list[list[Any]] = [[] for _ in inputs]
    before: list[Gradients | None] = [None] * len(inputs)
    for step in range(STEPS):
        of_ranks = [
            gradients_of(own_layers, given["batches"][step], case.params["alpha"], **changes)
            for own_layers, given in zip(layers, inputs, strict=True)
        ]
        for rank, own_layers in enumerate(layers):
            before[rank] = updates = rule(of_ranks, rank, before[rank])
            for i, update in enumerate(updates):
                layer, name = own_layers[i // 2], "AB"[i % 2]
                layer[name] = layer[name] - LR * update
            steps[rank].append([layer[name] for layer in own_layers for name in "AB"])
    right = {
        "base unchanged": True,
        "base has a gradient": False,
        "calls of loss_of": [1] * STEPS,
        "grows": [],
    }
    return [{"adapters": own_steps} | right for own_steps in steps]


def wrong(**changes: Any) -> Callable[..., list[Plain]]:
    def of(case: Case, inputs: Any) -> list[Plain]:
        return [{"adapters": each["adapters"]} for each in reference(case, inputs, **changes)]

    return of


def one(alpha: float, layer: Any) -> float:
    return 1.0


MISTAKES = {
    "takes the step without alpha / r, or with only one of the two": (
        wrong(scale=one),
        wrong(scale=lambda alpha, layer: alpha),
        wrong(scale=lambda alpha, layer: 1 / len(layer["A"])),
    ),
    "divides alpha by a width of the layer: r is the number of rows of A": (
        wrong(scale=lambda alpha, layer: alpha / len(layer["B"])),
        wrong(scale=lambda alpha, layer: alpha / layer["A"].shape[1]),
    ),
    "forgets alpha / r in backward: it scales the gradients of A and B, and the part of x's "
    "gradient that comes through them": (
        wrong(adapter_scale=one),
        wrong(input_scale=one),
        wrong(adapter_scale=one, input_scale=one),
    ),
    "passes no gradient through the base: x's gradient is y_grad @ W, plus the adapters' part": (
        wrong(backward=zeros)
    ),
    "passes x no gradient at all: only the last layer's adapters learn": wrong(
        backward=zeros, input_scale=lambda alpha, layer: 0.0
    ),
    "computes x's gradient with the codes, or without absmax: it needs the dequantized weight": (
        wrong(backward=without_absmax),
        wrong(backward=codes),
    ),
    "passes y's gradient on as x's, as an identity would: multiply it by W": wrong(
        backward=identity_if_square
    ),
    "computes x's gradient with the transposed weight: y = x @ W.T, so it is y_grad @ W": wrong(
        backward=transposed_if_square
    ),
    "reads the weight as [in, out]: blocks follow one another along the rows of [out, in]": (
        wrong(forward=other_shape, backward=other_shape),
        wrong(backward=other_shape),
    ),
    "keeps the gradients of the previous step: clear them": (
        wrong(rule=keeps_old),
        wrong(rule=keeps_sums),
    ),
    "takes the step with only its own gradients: average them over the ranks": (
        wrong(rule=own),
        wrong(rule=times(lambda n: 1 / n, own)),
    ),
    "averages the gradients of A only, or of B only": (
        *(wrong(rule=only_one_averaged(*each)) for each in product((0, 1), (True, False))),
    ),
    "takes the step with the sum of the gradients, not their mean": wrong(rule=times(lambda n: n)),
    "averages twice: divide the sum by world_size once": wrong(rule=times(lambda n: 1 / n)),
    "takes the step uphill: subtract lr · gradient": wrong(rule=times(lambda n: -1)),
    "leaves the adapters unchanged: change them in place": wrong(rule=masked(0, 0)),
    "trains only A, or only B": (wrong(rule=masked(1, 0)), wrong(rule=masked(0, 1))),
}
