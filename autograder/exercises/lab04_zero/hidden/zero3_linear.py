from collections.abc import Callable
from functools import partial
from itertools import compress
from typing import Any

from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab04_zero.hidden import shared
from autograder.exercises.lab04_zero.shared import mlp, samples
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
    unit: Callable[[Tensor, Tensor], Unit] = lambda weight, bias: (weight, bias),
) -> list[Any]:
    """Each rank's slices of the layers' gradients, combined by ``rule``."""
    of_ranks = [[unit(*each) for each in one_process(case, given)[1]] for given in inputs]
    return shared.slices_by_rank(of_ranks, case, rule)


def reference(case: Case, inputs: Any) -> list[Plain]:
    slices = by_rank(case, inputs)
    return [one_process(case, given)[0] | slices[rank] for rank, given in enumerate(inputs)]


def last_backward(case: Case, inputs: Any) -> list[Any] | None:
    """Each backward pass replaces the slice's gradient, that of the first batch comes last."""
    if len(inputs[0]["batches"]) == 1:
        return None
    return by_rank(case, [given | {"batches": given["batches"][:1]} for given in inputs])


def averages(case: Case, inputs: Any, of_weight: bool, of_bias: bool) -> list[Any]:
    n = samples(case)

    def unit(weight: Tensor, bias: Tensor) -> Unit:
        return weight / n if of_weight else weight, bias / n if of_bias else bias

    return by_rank(case, inputs, unit=unit)


MISTAKES = {
    "replaces the gradient in .grad: those of several backward passes add up": last_backward,
    **shared.by_wrong_rules(by_rank),
    "averages a gradient over the samples: it is their sum": (
        partial(averages, of_weight=True, of_bias=False),
        partial(averages, of_weight=False, of_bias=True),
        partial(averages, of_weight=True, of_bias=True),
    ),
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer("[start:stop].clone()", "[start:stop] + 0", "another way to copy"),
)
