"""References for several exercises: right gradients and wrong ones, computed in one process."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercises.lab08_pipeline.shared import Stage


def gradients(
    case: Case,
    inputs: Any,
    passes: Callable[[Tensor, Tensor], Tensor] = lambda y_grad, x_grad: x_grad,
    times: Callable[[int, int], float] = lambda stage, micro_batch: 1,
) -> list[Plain]:
    """By rank, of each of its stages: [weight's, bias's], for the mean over all micro-batches.

    passes  the gradient sent to the previous stage
    times   the weight of a micro-batch in a stage's gradients
    """
    ranks, stages = case.world_size, stages_in(inputs)
    found = [[torch.zeros_like(tensor) for tensor in (s.weight, s.bias)] for s in stages]
    x_of_all, targets = inputs[0]["inputs"], inputs[-1]["targets"]
    for k, (x, target) in enumerate(zip(x_of_all, targets, strict=True)):
        xs, ys = [], []
        for stage in stages:
            xs.append(x.detach().requires_grad_())
            ys.append(x := stage(xs[-1]))
        loss = F.mse_loss(x, target) / len(targets)
        (y_grad,) = torch.autograd.grad(loss, x, retain_graph=True)
        for number in reversed(range(len(stages))):
            wanted = [xs[number], stages[number].weight, stages[number].bias]
            x_grad, *own = torch.autograd.grad(ys[number], wanted, y_grad)
            for total, part in zip(found[number], own, strict=True):
                total += times(number, k) * part
            y_grad = passes(y_grad, x_grad)
    return [{"gradients": found[rank::ranks]} for rank in range(ranks)]


def reference(case: Case, inputs: Any) -> list[Plain]:
    outputs, y = gradients(case, inputs), inputs[0]["inputs"]
    for stage in stages_in(inputs):
        y = stage(y).detach()
    outputs[-1]["loss"] = F.mse_loss(y, inputs[-1]["targets"])
    return outputs


def stages_in(inputs: Any) -> list[Stage]:
    """The whole model, in order."""
    chunks = len(inputs[0]["weights"])
    return [Stage(*given["weights"][chunk]) for chunk in range(chunks) for given in inputs]


WRONG_PASSES = {
    "ends with wrong gradients: a stage sends back the gradient it received, but the previous "
    "stage needs x.grad": (
        lambda case, inputs: gradients(case, inputs, passes=lambda y_grad, x_grad: y_grad)
    ),
    "ends with wrong gradients: a stage calls backward without the gradient it received, "
    "y.backward(y_grad)": (
        lambda case, inputs: gradients(case, inputs, lambda y_grad, x_grad: torch.ones_like(x_grad))
    ),
}


def reference_of_plans(case: Case, inputs: Any) -> list[Plain]:
    """For exercises that return schedules: complete, with the right gradients if the case runs."""
    outputs = gradients(case, inputs) if case.params["runs"] else [{"gradients": None}]
    return [{"is_complete": True, **each} for each in outputs]
