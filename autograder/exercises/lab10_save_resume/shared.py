"""A state in slices, the names of its files, and a sign for budgets.

A state is several tensors, each flattened, padded with zeros to a multiple of N, and cut into N
equal slices; rank r has the r-th.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from autograder.exercise import Attempt, Case, Finding
from autograder.exercise.form import Sign
from autograder.exercise.signs import finding, is_over

INDEX = "index.json"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def shard_name(rank: int, world_size: int) -> str:
    return f"shard_{rank}_of_{world_size}.pt"


def shapes_of(case: Case) -> dict[str, list[int]]:
    return {name: list(shape) for name, (_, *shape) in case.params["state"].items()}


def draw_state(case: Case, rng: np.random.Generator) -> dict[str, Tensor]:
    """Whole tensors. ``case.params["state"]``: {name: [dtype, *shape]}"""
    return {
        name: torch.from_numpy(rng.standard_normal(shape)).to(DTYPES[dtype])
        for name, (dtype, *shape) in case.params["state"].items()
    }


def cut(state: dict[str, Tensor], world_size: int) -> list[dict[str, Tensor]]:
    """By rank, its slices: copies."""
    return [
        {name: padded(tensor, world_size)[rank].clone() for name, tensor in state.items()}
        for rank in range(world_size)
    ]


def padded(tensor: Tensor, world_size: int) -> Tensor:
    """[world_size, length of a slice]"""
    flat = tensor.flatten()
    return torch.cat([flat, flat.new_zeros(-len(flat) % world_size)]).view(world_size, -1)


def over_budget(
    heading: str, unit: str, mistake: str, beyond: Callable[[Case], float] = lambda case: 0
) -> Sign:
    """A rank is over the budget of that heading, and used more than ``beyond``."""

    def sign(attempt: Attempt) -> Finding | None:
        for rank in is_over(attempt, heading):
            (spent,) = (each for each in attempt.spent if each.heading == heading)
            if spent.used[rank] > beyond(attempt.case):
                evidence = f"{spent.used[rank]:,} {unit}, {spent.limit[rank]:,} are enough"
                alone = len(attempt.outputs) == 1
                who = "your answer" if alone else f"rank {rank}"
                return finding(who, (mistake, evidence), "your answer" if alone else "a rank")
        return None

    return sign
