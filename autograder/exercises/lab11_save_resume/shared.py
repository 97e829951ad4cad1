"""A sharded state, and the names of its files.

A state is a dict of tensors, each flattened, padded with zeros to a multiple of N, and cut into N
equal slices; rank r has the r-th.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from autograder.exercise import Case

INDEX = "index.json"


def shard_name(rank: int, world_size: int) -> str:
    return f"shard_{rank}_of_{world_size}.pt"


def shapes_of(case: Case) -> dict[str, list[int]]:
    return {name: list(shape) for name, (_, *shape) in case.params["state"].items()}


def draw_state(case: Case, rng: np.random.Generator) -> dict[str, Tensor]:
    """Whole tensors. ``case.params["state"]``: {name: [dtype, *shape]}"""
    return {
        name: torch.from_numpy(rng.standard_normal(shape)).to(getattr(torch, dtype))
        for name, (dtype, *shape) in case.params["state"].items()
    }


def cut(state: dict[str, Tensor], world_size: int) -> list[dict[str, Tensor]]:
    """Each rank's slices, as copies."""
    slices: list[dict[str, Tensor]] = [{} for _ in range(world_size)]
    for name, tensor in state.items():
        padded = functional.pad(tensor.flatten(), (0, -tensor.numel() % world_size))
        for own, part in zip(slices, padded.view(world_size, -1), strict=True):
            own[name] = part.clone()
    return slices
