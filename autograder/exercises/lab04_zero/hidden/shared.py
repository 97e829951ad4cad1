"""Shared by the hidden halves: slice bounds, and right and wrong ways to combine gradients."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercises.lab04_zero.hidden.shard_bounds import right as bounds_of
from autograder.exercises.lab04_zero.shared import sizes_of

Rule = Callable[[Tensor], Tensor]  # all ranks' gradients [N, length] -> the combined one [length]
NOT_ASKED = {
    "one rank": "not tested: one rank has everything",
    "more ranks than elements": "not tested: Zero1AdamW has a case of it",
}


def bounds(case: Case) -> dict[str, Plain]:
    """Slice bounds of all runs of consecutive tensors, padded or not: what answers may ask for."""
    n, sizes = case.world_size, sizes_of(case)
    runs = {sum(sizes[i:j]) for i, j in combinations(range(len(sizes) + 1), 2)}
    lengths = sorted(runs | {run + -run % n for run in runs})
    return {"lengths": lengths, "bounds": [bounds_of([length], n) for length in lengths]}


def flatten(tensors: Sequence[Tensor], world_size: int = 1) -> Tensor:
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    return torch.nn.functional.pad(flat, (0, -len(flat) % world_size))


def slices_by_rank(gradients: Any, case: Case, rule: Rule) -> list[dict[str, Plain]]:
    """gradients[rank][i], of unit or bucket i  ->  each rank's slices, combined by ``rule``."""
    n = case.world_size
    units = zip(*gradients, strict=True)
    used = [rule(torch.stack([flatten(own, n) for own in each])).chunk(n) for each in units]
    return [{"slices": [slices[rank] for slices in used]} for rank in range(n)]


def by_owner(gradients: Tensor) -> Tensor:
    """Each slice as its owner's backward computed it, not summed over ranks."""
    slices = gradients.chunk(len(gradients), dim=1)
    return torch.cat([of_ranks[owner] for owner, of_ranks in enumerate(slices)])


total: Rule = partial(torch.sum, dim=0)
mean: Rule = partial(torch.mean, dim=0)
WRONG_RULES: dict[str, Rule] = {
    "uses the sum of the gradients, not their mean: divide by world_size": total,
    "averages twice: divide the sum by world_size once": lambda each: mean(each) / len(each),
    "uses only its own gradients: sum those of all ranks with reduce_scatter": by_owner,
}


def by_wrong_rules(outputs: Callable[..., Plain]) -> dict[str, Callable[[Case, Any], Plain]]:
    return {said: partial(outputs, rule=rule) for said, rule in WRONG_RULES.items()}
