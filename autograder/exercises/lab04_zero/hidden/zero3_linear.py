from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab04_zero.hidden import shared
from autograder.exercises.lab04_zero.shared import mlp
from autograder.exercises.lab04_zero.zero3_linear import needs_grad

facts = shared.bounds
CASES = (
    with_random_delays(Case("5 ranks, 2 layers", 5, {"widths": [3, 4, 2], "samples": 4})),
    Case("4 ranks, 3 layers, 2 batches", 4, {"widths": [5, 8, 8, 3], "batches": 2}),
    Case("3 ranks, 6 layers of 724", 3, {"widths": [724] * 7}, weight=2),
)
BOUNDARIES = shared.NOT_ASKED | {
    "divides": "4 ranks, 8 layers of 256 KiB",
    "does not divide": "4 ranks, one layer",
    "one layer": "4 ranks, one layer",
}


Unit = tuple[Tensor, Tensor]  # the gradients of a layer's weight [out, in] and bias [out]


def one_process(case: Case, given: Any) -> tuple[dict[str, Plain], list[Unit]]:
    """Whole layers' outputs and x's gradients for each batch, and the sum of the batches' units."""
    model = mlp([tensor.clone() for tensor in given["layers"]])
    inputs = [x.clone().requires_grad_() for x, _ in given["batches"]]
    outputs = [model(x) for x in inputs]
    for y, (_, upstream) in zip(outputs, given["batches"], strict=True):
        y.backward(upstream)
    gradients: list[Any] = [parameter.grad for parameter in model.parameters()]
    units = list(zip(gradients[::2], gradients[1::2], strict=True))
    x_grads = compress([x.grad for x in inputs], needs_grad(case))
    y_grads = [upstream for _, upstream in given["batches"]]
    values = {"y": [y.detach() for y in outputs], "x.grad": [*x_grads], "y_grad": y_grads}
    return values, units


def by_rank(
    case: Case,
    inputs: Any,
    rule: shared.Rule = shared.mean,
    unit: Callable[[Tensor, Tensor], Sequence[Tensor]] = lambda weight, bias: (weight, bias),
) -> list[Any]:
    """Each rank's slices of the layers' gradients, combined by ``rule``."""
    of_ranks = [[unit(*each) for each in one_process(case, given)[1]] for given in inputs]
    return shared.slices_by_rank(of_ranks, case, rule)


def reference(case: Case, inputs: Any) -> list[Plain]:
    slices = by_rank(case, inputs)
    return [one_process(case, given)[0] | slices[rank] for rank, given in enumerate(inputs)]


def weight_of_zeros(case: Case, inputs: Any) -> list[Plain]:
    """In backward: only the last layer, the first that backward reaches, has a gradient."""
    of_ranks = [one_process(case, given)[1] for given in inputs]
    for units in of_ranks:
        units[:-1] = [
            (torch.zeros_like(weight), torch.zeros_like(bias)) for weight, bias in units[:-1]
        ]
    slices = shared.slices_by_rank(of_ranks, case, shared.mean)
    needs = needs_grad(case)
    x_grads = [
        [torch.zeros_like(x) for x, _ in compress(given["batches"], needs)] for given in inputs
    ]
    return [own | {"x.grad": x_grad} for own, x_grad in zip(slices, x_grads, strict=True)]


def last_backward(case: Case, inputs: Any) -> list[Any] | None:
    """Each backward pass replaces the slice's gradient, that of the first batch comes last."""
    if len(inputs[0]["batches"]) == 1:
        return None
    return by_rank(case, [given | {"batches": given["batches"][:1]} for given in inputs])


def x_grads(across: Callable[[Tensor], Tensor], case: Case, inputs: Any) -> list[Plain]:
    """x's gradients if ``across`` changes those of each layer, of all ranks at once [N, B, in]."""
    layers = inputs[0]["layers"]
    found = []
    for batch in zip(*(given["batches"] for given in inputs), strict=True):
        x, gradient = map(torch.stack, zip(*batch, strict=True))
        values = [x]
        for weight, bias in zip(layers[::2], layers[1::2], strict=True):
            values.append(torch.tanh(values[-1] @ weight.T + bias))
        for i, weight in reversed([*enumerate(layers[::2])]):
            gradient = across(gradient @ weight)
            gradient = gradient * (1 - values[i] ** 2) if i else gradient
        found.append(gradient)
    found = [*compress(found, needs_grad(case))]
    return [{"x.grad": [each[rank] for each in found]} for rank in range(case.world_size)]


def samples(case: Case) -> int:
    return int(case.params.get("samples", 2))


MISTAKES = {
    "computes x's gradient with a weight of zeros: gather the unit again in backward": (
        weight_of_zeros
    ),
    "divides x's gradient by N: only a slice's gradient is a mean over the ranks": (
        partial(x_grads, lambda each: each / len(each))
    ),
    "sums or averages x's gradient over the ranks: each rank has its own x, and returns its own "
    "gradient": (
        partial(x_grads, lambda each: each.mean(dim=0, keepdim=True).expand_as(each)),
        partial(x_grads, lambda each: each.sum(dim=0, keepdim=True).expand_as(each)),
    ),
    "replaces the gradient in .grad: those of several backward passes add up": last_backward,
    **shared.by_wrong_rules(by_rank),
    "flattens the bias before the weight: the order is weight, bias": (
        partial(by_rank, unit=lambda weight, bias: (bias, weight))
    ),
    "flattens the transpose of the weight's gradient: it is y_grad.T @ x, [out, in]": (
        partial(by_rank, unit=lambda weight, bias: (weight.T, bias))
    ),
    "averages the weight's gradient over the samples: it is their sum": (
        lambda case, inputs: by_rank(
            case, inputs, unit=lambda weight, bias: (weight / samples(case), bias)
        ),
        lambda case, inputs: by_rank(
            case, inputs, unit=lambda weight, bias: (weight / samples(case), bias / samples(case))
        ),
    ),
    "averages the bias's gradient over the samples: it is their sum": (
        lambda case, inputs: by_rank(
            case, inputs, unit=lambda weight, bias: (weight, bias / samples(case))
        )
    ),
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer("[start:stop].clone()", "[start:stop] + 0", "another way to copy"),
)
