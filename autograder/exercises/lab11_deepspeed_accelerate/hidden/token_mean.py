from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab11_deepspeed_accelerate.token_mean import (
    IGNORED,
    LR,
    STEPS,
    as_tensor,
    case_of,
    make_model,
)

CASES = (
    case_of("3 ranks, one micro-batch", 3, 1),
    with_random_delays(
        case_of("2 ranks, one of them with padding only", 2, 2, (0, 0), (1, 0), (1, 1))
    ),
)
BOUNDARIES = {
    "divides": "4 ranks, 2 micro-batches",
    "does not divide": "2 ranks, 3 micro-batches",
    "one rank": "not tested: it is the one process that ranks are compared with",
    "more ranks than elements": "2 ranks, one of them with padding only",
    "one micro-batch": "3 ranks, one micro-batch",
}
EQUIVALENT_ANSWERS: tuple[EquivalentAnswer, ...] = ()


@dataclass(frozen=True)
class Counts:
    """Of a step: ``tokens[rank][micro-batch]`` without padding, ``positions`` with it."""

    tokens: Sequence[Sequence[int]]
    positions: Sequence[Sequence[int]]

    @property
    def ranks(self) -> int:
        return len(self.tokens)

    @property
    def micro_batches(self) -> int:
        return len(self.tokens[0])

    @property
    def all_tokens(self) -> int:
        return sum(map(sum, self.tokens))

    @property
    def all_positions(self) -> int:
        return sum(map(sum, self.positions))


def one_of(tokens: int) -> float:
    """1/tokens; torch gives nan for 0/0."""
    return 1 / tokens if tokens else math.nan


# The factor of a micro-batch's summed loss; ``rank`` and ``i`` say which micro-batch it is.
Weight = Callable[[Counts, int, int], float]


def right_weight(counts: Counts, rank: int, i: int) -> float:
    return 1 / counts.all_tokens


def reference(
    case: Case,
    inputs: Any,
    weight: Weight = right_weight,
    logged: Weight = right_weight,
    shares: float | None = None,
) -> list[Plain]:
    """One process with the micro-batches of all ranks. ``weight``: in the gradient; ``logged``: in
    the loss; ``shares``: each rank returns its own part of it, times this."""
    model = make_model(inputs[0]["weights"])
    parameters = list(model.parameters())
    losses: list[list[float]] = [[] for _ in inputs]
    gradients = []
    for step in range(STEPS):
        batches = [given["steps"][step] for given in inputs]
        counts = Counts(
            [[int((labels != IGNORED).sum()) for _, labels in own] for own in batches],
            [[labels.numel() for _, labels in own] for own in batches],
        )
        total, parts = torch.zeros(()), [0.0] * len(inputs)
        for rank, own in enumerate(batches):
            for i, (ids, labels) in enumerate(own):
                summed = cross_entropy(
                    model(ids).flatten(0, 1),
                    labels.flatten(),
                    ignore_index=IGNORED,
                    reduction="sum",
                )
                if counts.tokens[rank][i]:  # torch ignores it in backward even if its loss is nan
                    total = total + summed * weight(counts, rank, i)
                parts[rank] += summed.item() * logged(counts, rank, i)
        of_step = torch.autograd.grad(total, parameters)
        gradients.append(list(of_step))
        with torch.no_grad():
            for parameter, gradient in zip(parameters, of_step, strict=True):
                parameter.sub_(LR * gradient)
        for rank, part in enumerate(parts):
            losses[rank].append(sum(parts) if shares is None else part * shares)
    return [{"losses": as_tensor(own), "gradients": gradients} for own in losses]


def with_weight(weight: Weight) -> tuple[Callable[[Case, Any], list[Plain]], ...]:
    """With the weight in the gradient only, or in the returned loss as well."""
    return partial(reference, weight=weight), partial(reference, weight=weight, logged=weight)


MISTAKES = {
    "takes the mean of the micro-batches' means, where a token of a short one counts more: divide "
    "every sum by the tokens of the whole step": with_weight(
        lambda c, rank, i: one_of(c.tokens[rank][i]) / (c.ranks * c.micro_batches)
    ),
    "returns nan: a micro-batch that is all padding has no mean, so start from its sum": partial(
        reference,
        logged=lambda c, rank, i: c.tokens[rank][i] * one_of(c.tokens[rank][i]) / c.all_tokens,
    ),
    "counts only its own tokens: divide by the tokens of all ranks": (
        *with_weight(lambda c, rank, i: one_of(sum(c.tokens[rank])) / c.ranks),
        *with_weight(lambda c, rank, i: one_of(sum(c.tokens[rank]))),
    ),
    "counts padding as tokens: count the labels that are not -100": with_weight(
        lambda c, rank, i: 1 / c.all_positions
    ),
    "forgets that DDP averages gradients over the ranks: multiply by num_processes": with_weight(
        lambda c, rank, i: 1 / (c.ranks * c.all_tokens)
    ),
    "forgets that accelerator.backward divides by the accumulation steps: multiply by them": (
        with_weight(lambda c, rank, i: 1 / (c.micro_batches * c.all_tokens))
    ),
    "forgets both divisions: DDP's by the number of ranks and accelerator.backward's by the "
    "accumulation steps": with_weight(
        lambda c, rank, i: 1 / (c.ranks * c.micro_batches * c.all_tokens)
    ),
    "returns its own part of the loss: add up the parts of all ranks": (
        partial(reference, shares=1.0),
        lambda case, inputs: reference(case, inputs, shares=float(case.world_size)),
    ),
    "returns the mean of the ranks' parts: add them up": partial(
        reference, logged=lambda c, rank, i: 1 / (c.ranks * c.all_tokens)
    ),
}
