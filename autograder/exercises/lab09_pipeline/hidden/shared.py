"""References for several exercises: right gradients and wrong ones, computed in one process."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from autograder.exercise import Case, Plain
from autograder.exercises.lab09_pipeline.shared import Stage, stages_of_ranks


def gradients(
    case: Case,
    inputs: Any,
    passes: Callable[[Tensor, Tensor, bool], Tensor] = lambda y_grad, x_grad, is_last: x_grad,
    times: Callable[[int, int], float] = lambda stage, micro_batch: 1,
) -> list[Plain]:
    """By rank, of each of its stages: [weight's, bias's], for the mean over all micro-batches.

    passes  the gradient sent to the previous stage, by the last stage or another one
    times   the weight of a micro-batch in a stage's gradients
    """
    stages, of_ranks = stages_in(case, inputs), stages_of_ranks(case)
    found = [[torch.zeros_like(tensor) for tensor in (s.weight, s.bias)] for s in stages]
    x_of_all, targets = ends_of(inputs)
    for k, (x, target) in enumerate(zip(x_of_all, targets, strict=True)):
        xs, ys = [], []
        for stage in stages:
            xs.append(x.detach().requires_grad_())
            ys.append(x := stage(xs[-1]))
        loss = functional.mse_loss(x, target) / len(targets)
        (y_grad,) = torch.autograd.grad(loss, x, retain_graph=True)
        for number in reversed(range(len(stages))):
            wanted = [xs[number], stages[number].weight, stages[number].bias]
            x_grad, *own = torch.autograd.grad(ys[number], wanted, y_grad)
            for total, part in zip(found[number], own, strict=True):
                total += times(number, k) * part
            y_grad = passes(y_grad, x_grad, number == len(stages) - 1)
    return [{"gradients": [found[stage] for stage in own]} for own in of_ranks]


def reference(case: Case, inputs: Any) -> list[Plain]:
    """The right gradients and loss."""
    y, targets = ends_of(inputs)
    for stage in stages_in(case, inputs):
        y = stage(y).detach()
    of_ranks = gradients(case, inputs)
    for output, given in zip(of_ranks, inputs, strict=True):
        if given["targets"] is not None:
            output["loss"] = functional.mse_loss(y, targets)
    return of_ranks


def without_loss(case: Case, inputs: Any) -> list[Plain]:
    of_ranks = reference(case, inputs)
    return [each | ({"loss": None} if "loss" in each else {}) for each in of_ranks]


def stages_in(case: Case, inputs: Any) -> list[Stage]:
    """The whole model, in order."""
    by_number = {
        number: Stage(*weights)
        for own, given in zip(stages_of_ranks(case), inputs, strict=True)
        for number, weights in zip(own, given["weights"], strict=True)
    }
    return [by_number[number] for number in sorted(by_number)]


def ends_of(inputs: Any) -> list[Tensor]:
    """The inputs of the first stage, and the targets of the last one."""
    return [
        next(given[end] for given in inputs if given[end] is not None)
        for end in ("inputs", "targets")
    ]


WRONG_PASSES = {
    "returns no loss: the rank of the last stage has to return it": without_loss,
    "ends with wrong gradients: a stage sends back the gradient it received, but the previous "
    "stage needs x.grad": (
        lambda case, inputs: gradients(case, inputs, lambda y_grad, *_: y_grad),
        lambda case, inputs: gradients(
            case, inputs, lambda y_grad, x_grad, is_last: x_grad if is_last else y_grad
        ),
    ),
    "ends with wrong gradients: a stage calls backward without the gradient it received, "
    "y.backward(y_grad)": (
        lambda case, inputs: gradients(case, inputs, lambda _, x_grad, *__: torch.ones_like(x_grad))
    ),
}


def reference_of_plans(case: Case, inputs: Any) -> list[Plain]:
    """For exercises that return schedules: complete, with the right gradients if the case runs."""
    outputs = gradients(case, inputs) if case.params["runs"] else [{"gradients": None}]
    return [{"is_complete": True, **each} for each in outputs]
