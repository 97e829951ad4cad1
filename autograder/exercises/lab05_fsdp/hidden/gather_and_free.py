from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab05_fsdp.gather_and_free import LR, blocks_of, loss_of

CASES = (
    with_random_delays(
        Case("5 ranks, 3 units", 5, {"width": 1, "inner": [1, 4, 2], "batches": 2}, weight=0.5)
    ),
    Case(
        "3 ranks, 10 units of 1 MiB",
        3,
        {"width": 512, "inner": [*range(250, 260)], "batches": 1},
        weight=1.5,
    ),
)
BOUNDARIES = {
    "divides": "4 ranks, 12 units of 128 KiB",
    "does not divide": "4 ranks, 3 units, 2 batches",
    "one unit": "5 ranks, one unit of 4 elements",
    "one rank": "not tested: one rank has everything",
    "more ranks than elements": "5 ranks, one unit of 4 elements",
}

Rule = Callable[[Tensor], Tensor]  # all ranks' gradients [N, length] -> the combined one [length]


def flat_of(tensors: Sequence[Tensor], world_size: int) -> Tensor:
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    return nn.functional.pad(flat, (0, -len(flat) % world_size))


def train(
    case: Case, inputs: Any, rule: Rule, frozen: bool = False, adds_up: bool = False
) -> list[Plain]:
    """One process has the whole model, and computes each rank's batch in turn.

    ``frozen``: outputs and gradients are always computed with the first parameters.
    ``adds_up``: each step's gradients contain those of the steps before.
    """
    n = case.world_size
    blocks = blocks_of([tensor.clone() for tensor in inputs[0]["layers"]])
    model = nn.Sequential(*blocks)
    found: list[Any] = [{"y": [], "gradients": []} for _ in range(n)]
    earlier: list[Any] = []
    for batches in zip(*(given["batches"] for given in inputs), strict=True):
        by_rank = []
        for rank, (x, targets) in enumerate(batches):
            y = model(x)
            found[rank]["y"].append(y.detach())
            gradients = torch.autograd.grad(loss_of(y, targets), list(model.parameters()))
            by_rank.append([flat_of(gradients[i : i + 4], n) for i in range(0, len(gradients), 4)])
        combined = [rule(torch.stack(each)) for each in zip(*by_rank, strict=True)]
        if adds_up and earlier:
            combined = [now + before for now, before in zip(combined, earlier, strict=True)]
        earlier = combined
        for rank in range(n):
            found[rank]["gradients"].append([each.chunk(n)[rank].clone() for each in combined])
        if not frozen:
            update(blocks, combined)
    return found


def update(blocks: Sequence[nn.Module], flats: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for block, flat in zip(blocks, flats, strict=True):
            start = 0
            for parameter in block.parameters():
                part = flat[start : start + parameter.numel()]
                parameter.sub_(LR * part.view_as(parameter))
                start += parameter.numel()


def by_owner(gradients: Tensor) -> Tensor:
    """Each slice as its owner's backward computed it."""
    slices = gradients.chunk(len(gradients), dim=1)
    return torch.cat([of_ranks[owner] for owner, of_ranks in enumerate(slices)])


mean: Rule = partial(torch.mean, dim=0)
reference = partial(train, rule=mean)

MISTAKES = {
    "uses the sum of the gradients, not their mean: divide by world_size": (
        partial(train, rule=partial(torch.sum, dim=0))
    ),
    "averages twice: divide the sum by world_size once": (
        partial(train, rule=lambda each: each.mean(0) / len(each))
    ),
    "divides by N - 1: the mean over N ranks divides by world_size": (
        partial(train, rule=lambda each: each.sum(0) / (len(each) - 1))
    ),
    "uses only its own gradients: sum those of all ranks with reduce_scatter": (
        partial(train, rule=by_owner)
    ),
    "never sees the update: gather each unit again in every forward pass": (
        partial(train, rule=mean, frozen=True)
    ),
    "adds the gradients of earlier steps: remove them from the parameters in each step": (
        partial(train, rule=mean, adds_up=True)
    ),
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "        units[k].free()\n        output.",
        "        if k < len(units) - 1:\n            units[k].free()\n        output.",
        "the last unit may stay whole: backward needs it first",
    ),
    EquivalentAnswer(
        "        flat = units[k].take_gradients()\n        units[k].free()\n",
        "        units[k].free()\n        flat = units[k].take_gradients()\n",
        "the gradients are complete, so the unit's parameters are no longer needed",
    ),
)
