from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EqualAnswer, shaken
from autograder.exercises.lab04_zero.hidden import shared
from autograder.exercises.lab04_zero.shared import mlp

facts = shared.bounds
CASES = (
    shaken(Case("5 ranks, 2 layers", 5, {"widths": [3, 4, 2], "samples": 4})),
    Case("2 ranks, 3 layers", 2, {"widths": [5, 8, 8, 3]}),
    Case("4 ranks, 24 layers of 362", 4, {"widths": [362] * 25}, weight=2),
)
BOUNDARIES = shared.NOT_ASKED | {
    "divides": "4 ranks, 8 layers of 256 KiB",
    "does not divide": "4 ranks, one layer",
    "one layer": "4 ranks, one layer",
}


def one_process(given: Any) -> tuple[dict[str, Plain], list[tuple[Tensor, Tensor]]]:
    """Whole layers' output and x's gradient, and each layer's weight and bias gradients."""
    model = mlp([tensor.clone() for tensor in given["layers"]])
    x, upstream = (tensor.clone() for tensor in given["batches"][0])
    x.requires_grad_()
    y = model(x)
    x_grad, *gradients = torch.autograd.grad(y, [x, *model.parameters()], upstream)
    units = list(zip(gradients[::2], gradients[1::2], strict=True))
    return {"y": y.detach(), "x.grad": x_grad}, units


def by_rank(case: Case, inputs: Any, rule: shared.Rule = shared.mean) -> list[Any]:
    """Each rank's slices of the layers' gradients, combined by ``rule``."""
    return shared.slices_by_rank([one_process(given)[1] for given in inputs], case, rule)


def reference(case: Case, inputs: Any) -> list[Plain]:
    slices = by_rank(case, inputs)
    return [one_process(given)[0] | slices[rank] for rank, given in enumerate(inputs)]


MISTAKES = shared.by_wrong_rules(by_rank)
EQUAL_ANSWERS = (EqualAnswer("[start:stop].clone()", "[start:stop] + 0", "another way to copy"),)
