"""The reference: forward and backward of the chain, written out with dequantized weights."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab14_lora.qlora_step import (
    BLOCK,
    LR,
    STEPS,
    adapters_case,
    named,
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
Scale = Callable[[float, Any], float]  # of alpha, for a layer


def dequantized(layer: Any, shape: tuple[int, int]) -> Tensor:
    """Codes from 0 to 15; the first of two weights is in the high nibble."""
    codes = torch.stack([layer["packed"] >> 4, layer["packed"] & 15], dim=1).long()
    values = torch.tensor(nf4_code_points())[codes].view(-1, BLOCK)
    return (values * layer["absmax"][:, None]).view(shape)


def alpha_over_r(alpha: float, layer: Any) -> float:
    return alpha / len(layer["A"])


def gradients_of(
    layers: Any,
    batch: Sequence[Tensor],
    alpha: float,
    scale: Scale = alpha_over_r,
    backward: Callable[[Tensor], Tensor] = lambda weight: weight,
) -> Gradients:
    """``backward``: weight -> the matrix with which x's gradient is computed."""
    x, targets = batch
    xs, weights = [], []
    for layer in layers:
        weights.append(dequantized(layer, (len(layer["B"]), layer["A"].shape[1])))
        xs.append(x)
        low_rank = x @ layer["A"].T @ layer["B"].T
        x = x @ weights[-1].T + scale(alpha, layer) * low_rank
    y_grad = 2 * (x - targets) / len(x)
    found: Gradients = []
    for layer, x, weight in zip(layers[::-1], xs[::-1], weights[::-1], strict=True):
        a, b, factor = layer["A"], layer["B"], scale(alpha, layer)
        found = [factor * (y_grad @ b).T @ x, factor * y_grad.T @ (x @ a.T), *found]
        y_grad = y_grad @ backward(weight) + factor * y_grad @ b @ a
    return found


def mean(of_ranks: Sequence[Gradients], rank: int, before: Gradients | None) -> Gradients:
    return [sum(each) / len(of_ranks) for each in zip(*of_ranks, strict=True)]


def own(of_ranks: Sequence[Gradients], rank: int, before: Gradients | None) -> Gradients:
    return of_ranks[rank]


def times(factor: Callable[[int], float], of: Rule = mean) -> Rule:
    """``factor``: a function of the number of ranks."""
    return lambda of_ranks, rank, before: [
        factor(len(of_ranks)) * each for each in of(of_ranks, rank, before)
    ]


def keeps_old(factor: Callable[[int], float]) -> Rule:
    """Adds the previous update, times a function of the number of ranks."""
    return lambda of_ranks, rank, before: [
        new + factor(len(of_ranks)) * (before[i] if before else 0)
        for i, new in enumerate(mean(of_ranks, rank, None))
    ]


def reference(case: Case, inputs: Any, rule: Rule = mean, **changes: Any) -> list[Plain]:
    layers = [[dict(layer) for layer in given["layers"]] for given in inputs]
    steps: list[dict[str, Tensor]] = [{} for _ in inputs]
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
            steps[rank] |= named(step, [layer[name] for layer in own_layers for name in "AB"])
    right = {
        "base unchanged": True,
        "base has a gradient": False,
        "calls of loss_of": {f"step {step + 1}": 1 for step in range(STEPS)},
    }
    return [right | {"grows": [], "adapters": own_steps} for own_steps in steps]


SCALES: tuple[Scale, ...] = (
    lambda alpha, layer: 1.0,
    lambda alpha, layer: alpha,
    lambda alpha, layer: 1 / len(layer["A"]),
    lambda alpha, layer: alpha / len(layer["B"]),
    lambda alpha, layer: alpha / layer["A"].shape[1],
    lambda alpha, layer: alpha / len(layer["A"]) ** 0.5,
    lambda alpha, layer: alpha // len(layer["A"]),
)
MISTAKES = {
    "multiplies the adapters by another factor than alpha / r: r is the number of rows of A": tuple(
        partial(reference, scale=scale) for scale in SCALES
    ),
    "passes no gradient through the base: x's gradient is y_grad @ W, plus the adapters' part": (
        partial(reference, backward=torch.zeros_like)
    ),
    "computes x's gradient with the transposed weight: y = x @ W.T, so it is y_grad @ W": partial(
        reference, backward=lambda w: w.T if w.shape[0] == w.shape[1] else w
    ),
    "keeps the gradients of the previous step: clear them": (
        partial(reference, rule=keeps_old(lambda n: 1)),
        # summed in place, and each rank adds its own to the sums
        partial(reference, rule=keeps_old(lambda n: n)),
    ),
    "adds a part of the previous update: plain SGD has no momentum": partial(
        reference, rule=keeps_old(lambda n: 0.9)
    ),
    "takes the step with only its own gradients: average them over the ranks": (
        partial(reference, rule=own),
        partial(reference, rule=times(lambda n: 1 / n, own)),
    ),
    "takes the step with the sum of the gradients, not their mean": partial(
        reference, rule=times(lambda n: n)
    ),
    "leaves the adapters unchanged: change them in place": partial(
        reference, rule=times(lambda n: 0)
    ),
}
