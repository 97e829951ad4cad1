from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab02_dp_vs_ddp.shared import build_with, flat, trainable
from autograder.exercises.lab16_where_the_time_goes.repaired_step import (
    LR,
    MOMENTUM,
    STEPS,
    case_of,
    of_one_step,
)

CASES = (
    with_random_delays(
        case_of("3 ranks, one micro-batch, tied layers", 3, 1, [12] * 4, tied=[0, 2])
    ),
    case_of("five micro-batches on 4 ranks", 4, 5, [128, 256, 256]),
)
BOUNDARIES = {
    "divides": "not tested: nothing is divided",
    "does not divide": "not tested, as above",
    "one rank": "not tested: it waits for nobody",
    "more ranks than elements": "not tested, as above",
    "one micro-batch": "3 ranks, one micro-batch, tied layers",
    "a frozen parameter": "3 ranks, 2 micro-batches, a frozen layer",
    "a tied parameter": "3 ranks, one micro-batch, tied layers",
}
EQUIVALENT_ANSWERS: tuple[EquivalentAnswer, ...] = ()

# Values of all ranks' micro-batches [N][M]  ->  what each rank uses
Rule = Callable[[Tensor], Sequence[Tensor]]


def times(factor: Callable[[int, int], float]) -> Rule:
    """The sum over N ranks and M micro-batches, times the factor."""

    def rule(values: Tensor) -> list[Tensor]:
        n, m = values.shape[:2]
        return [values.sum(dim=(0, 1)) * factor(n, m)] * n

    return rule


def of_the_last(factor: Callable[[int, int], float]) -> Rule:
    """The last micro-batch of each rank instead of all."""

    def rule(values: Tensor) -> list[Tensor]:
        n, m = values.shape[:2]
        return [values[:, -1].sum(dim=0) * factor(n, m)] * n

    return rule


def own(values: Tensor) -> list[Tensor]:
    return list(values.mean(dim=1))


def own_sum(values: Tensor) -> list[Tensor]:
    return list(values.sum(dim=1))


mean = times(lambda n, m: 1 / (n * m))


def reference(
    case: Case,
    inputs: Any,
    gradient: Rule = mean,
    logged: Rule = mean,
    steps: bool = True,
    keeps: bool = False,
) -> list[Plain]:
    """``steps``: whether the optimizer steps; ``keeps``: the gradient of the step before."""
    ranks = range(case.world_size)
    models = [build_with(case, inputs[0]["state"]) for _ in ranks]
    optimizers = [torch.optim.SGD(each.parameters(), lr=LR, momentum=MOMENTUM) for each in models]
    outputs: list[dict[str, Plain]] = [{} for _ in ranks]
    for step in range(STEPS):
        losses, gradients = [], []
        for model, given in zip(models, inputs, strict=True):
            of_rank = [model(*batch) for batch in given["steps"][step]]
            losses.append([loss.detach() for loss in of_rank])
            gradients.append(
                [flat(torch.autograd.grad(loss, trainable(model))) for loss in of_rank]
            )
        used = gradient(stacked(gradients))
        shown = logged(stacked(losses))
        for rank in ranks:
            parameters = trainable(models[rank])
            parts = used[rank].split([each.numel() for each in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                before = parameter.grad if keeps and parameter.grad is not None else 0
                parameter.grad = before + part.view_as(parameter)
            if steps:
                optimizers[rank].step()
            after = flat(models[rank].parameters()).clone()
            outputs[rank] |= of_one_step(step, shown[rank].item(), after)
    return outputs


def stacked(values: Sequence[Sequence[Tensor]]) -> Tensor:
    """[N, M, …]"""
    return torch.stack([torch.stack([*of_rank]) for of_rank in values])


Wrong = Callable[[Case, Any], list[Plain]]


def in_both(*rules: Rule) -> tuple[Wrong, ...]:
    """In the gradient, in the loss, or in both, which share a buffer."""
    return tuple(
        partial(reference, gradient=gradient, logged=logged)
        for rule in rules
        for gradient, logged in ((rule, rule), (rule, mean), (mean, rule))
    )


MISTAKES: dict[str, Wrong | tuple[Wrong, ...]] = {
    "has the sum over the ranks, not the mean: divide by world_size": in_both(
        times(lambda n, m: 1 / m)
    ),
    "has the sum over the micro-batches, not the mean: divide by len(micro_batches)": in_both(
        times(lambda n, m: 1 / n)
    ),
    "divides twice by the same number": in_both(
        times(lambda n, m: 1 / (n * n * m)), times(lambda n, m: 1 / (n * m * m))
    ),
    "has only the last micro-batch's: add up all of the step": in_both(
        of_the_last(lambda n, m: 1 / n), of_the_last(lambda n, m: 1 / (n * m))
    ),
    "uses its own values: read the loss from the reduced buffer, and copy the gradients back from "
    "it before optimizer.step()": in_both(own, own_sum),
    "keeps the gradient of the step before: call optimizer.zero_grad()": partial(
        reference, keeps=True
    ),
    "never changes the parameters: call optimizer.step() after the all-reduce": partial(
        reference, steps=False
    ),
}
