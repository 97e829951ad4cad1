from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import with_random_delays
from autograder.exercises.lab13_accelerate.token_mean import (
    IGNORED,
    LR,
    STEPS,
    as_tensor,
    case_of,
    make_model,
    of_one_step,
)

CASES = (
    case_of("3 ranks, one micro-batch", 3, 1),
    with_random_delays(
        case_of("2 ranks, one of them with padding only", 2, 2, (0, 0), (1, 0), (1, 1))
    ),
    case_of("2 ranks, 150 kB of gradients", 2, 3, vocabulary=1500, width=12),
)
BOUNDARIES = {
    "divides": "4 ranks, 2 micro-batches",
    "does not divide": "2 ranks, 3 micro-batches, one of them all padding",
    "one rank": "not tested: it is the one process that ranks are compared with",
    "more ranks than elements": "2 ranks, one of them with padding only",
    "one micro-batch": "3 ranks, one micro-batch",
}

# The factors of the micro-batches' summed losses, from their numbers of tokens, without padding and
# with it: all are [ranks, micro-batches], or can be broadcast.
Weights = Callable[[Tensor, Tensor], Tensor]


def right_weights(tokens: Tensor, positions: Tensor) -> Tensor:
    return 1 / tokens.sum()


def reference(
    case: Case,
    inputs: Any,
    weights: Weights = right_weights,
    logged: Weights = right_weights,
    own_part: bool = False,
    shifted: int = 0,
    counted_from: int = 0,
) -> list[Plain]:
    """One process with the micro-batches of all ranks. ``weights``: in the gradient; ``logged``: in
    the loss, of which each rank returns its ``own_part``, or all.  ``shifted``: labels of that many
    positions later; ``counted_from``: the position from which they are counted."""
    model = make_model(inputs[0]["weights"])
    names, parameters = zip(*model.named_parameters(), strict=True)
    losses: list[list[float]] = [[] for _ in inputs]
    gradients: dict[str, Plain] = {}
    for step in range(STEPS):
        batches = [given["steps"][step] for given in inputs]
        counted = [[y[:, counted_from:] != IGNORED for _, y in own] for own in batches]
        tokens = torch.tensor([[each.sum() for each in own] for own in counted]).double()
        positions = torch.tensor([[y.numel() for _, y in own] for own in batches]).double()
        factors = weights(tokens, positions).expand_as(tokens)
        total, summed = torch.zeros(()), torch.zeros_like(tokens)
        for rank, own in enumerate(batches):
            for i, (ids, labels) in enumerate(own):
                logits = model(ids[:, : ids.shape[1] - shifted]).flatten(0, 1)
                targets = labels[:, shifted:].flatten()
                loss = cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
                if tokens[rank, i]:  # torch ignores it in backward even if its loss is nan
                    total = total + loss * factors[rank, i].item()
                summed[rank, i] = loss.item()
        of_step = torch.autograd.grad(total, parameters)
        gradients |= of_one_step(step, dict(zip(names, of_step, strict=True)))
        with torch.no_grad():
            for parameter, gradient in zip(parameters, of_step, strict=True):
                parameter.sub_(LR * gradient)
        parts = (summed * logged(tokens, positions)).sum(dim=1).tolist()
        for rank, part in enumerate(parts):
            losses[rank].append(part if own_part else sum(parts))
    return [{"losses": as_tensor(own), **gradients} for own in losses]


def with_weights(*wrong: Weights) -> tuple[Callable[[Case, Any], list[Plain]], ...]:
    """Each in the gradient only, or in the returned loss as well."""
    in_gradient = [partial(reference, weights=weights) for weights in wrong]
    return *in_gradient, *(partial(reference, weights=each, logged=each) for each in wrong)


MISTAKES = {
    "takes the mean of the micro-batches' means, where a token of a short one counts more: divide "
    "every sum by the tokens of the whole step": with_weights(
        lambda tokens, positions: 1 / tokens / tokens.numel()
    ),
    "returns nan: a micro-batch that is all padding has no mean, so start from its sum": partial(
        reference, logged=lambda tokens, positions: tokens / tokens / tokens.sum()
    ),
    "counts only its own tokens: divide by the tokens of all ranks": with_weights(
        lambda tokens, positions: 1 / tokens.sum(dim=1, keepdim=True) / len(tokens)
    ),
    "counts padding as tokens: count the labels that are not -100": with_weights(
        lambda tokens, positions: 1 / positions.sum()
    ),
    "shifts the labels: here each belongs to the logits of its own position, as in the spec": (
        partial(reference, shifted=1),
        partial(reference, shifted=1, counted_from=1),
    ),
    "has gradients that are too small: DDP divides them by the number of ranks, and "
    "accelerator.backward divides by the accumulation steps, so multiply by both": with_weights(
        lambda tokens, positions: 1 / tokens.sum() / len(tokens),
        lambda tokens, positions: 1 / tokens.sum() / tokens.shape[1],
        lambda tokens, positions: 1 / tokens.sum() / tokens.numel(),
    ),
    "returns its own part of the loss: add up the parts of all ranks": partial(
        reference, own_part=True
    ),
    "returns the sum of the losses: divide it by the tokens of all ranks": partial(
        reference, logged=lambda tokens, positions: torch.ones(())
    ),
    "returns the mean of the ranks' parts: add them up": partial(
        reference, logged=lambda tokens, positions: 1 / tokens.sum() / len(tokens)
    ),
}
