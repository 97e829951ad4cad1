"""The layout of a model under FSDP2 (`fully_shard`), read from its DTensors."""

from __future__ import annotations

import math
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from shardlab.shards.held import Local, added, local_tensor, occupied, states_of
from shardlab.shards.layout import report


def of_fsdp2(model: nn.Module, optimizer: Any = None) -> dict[str, Any]:
    """What this rank holds of ``model`` at this moment; to be returned by fn, for `gather`.

    Each tensor is cut between rows of its first dimension, in as many rows for each rank. A share
    that would be longer than the rows left is padded: in parameters and gradients, not in
    optimizer state. Gradients that are None (before backward, after zero_grad) are not held.
    Scalars, such as Adam's step, are left out.

    Raises ValueError for tensors sharded along another dimension, or along two axes of a mesh.
    """
    world_size, rank = dist.get_world_size(), dist.get_rank()
    parameters: list[Local] = []
    gradients: list[Local] = []
    states: list[list[Local]] = []
    tensors, length = [], 0
    for index, (name, p) in enumerate(model.named_parameters()):
        turn, share, start = _share(name, p)
        at = length + turn * share
        tensors.append((name, p.numel()))

        def here(
            data: Tensor, index: int = index, at: int = at, start: int = start, share: int = share
        ) -> Local:
            return Local(index, at, start, share, local_tensor(data))

        parameters.append(here(p))
        if p.grad is not None:
            gradients.append(here(p.grad))
        for number, state in enumerate(states_of(optimizer, p) if optimizer else []):
            if number == len(states):
                states.append([])
            states[number].append(here(state))
        length += share * _shards(p)
    return report(
        rank=rank,
        world_size=world_size,
        stage=None,
        source=f"FSDP2 on {world_size} ranks",
        tensors=tensors,
        length=length,
        held={
            "parameters": occupied(parameters),
            "gradients": occupied(gradients),
            "optimizer": added(*map(occupied, states)),
        },
    )


def _shard_axis(p: Any) -> int | None:
    """The axis of the mesh that cuts a tensor; None: each rank has it whole."""
    axes = [
        axis for axis, kind in enumerate(getattr(p, "placements", ())) if not kind.is_replicate()
    ]
    return axes[0] if axes else None


def _shards(p: Any) -> int:
    axis = _shard_axis(p)
    return 1 if axis is None else int(p.device_mesh.size(axis))


def _share(name: str, p: Any) -> tuple[int, int, int]:
    """(which share is here, elements of a share with padding, where it begins in the tensor)."""
    placements = getattr(p, "placements", ())
    cut = [kind for kind in placements if not kind.is_replicate()]
    axis = _shard_axis(p)
    if axis is None:
        return 0, p.numel(), 0
    if len(cut) > 1 or not cut[0].is_shard(0):
        raise ValueError(f"{name} is placed {placements}: only shards of dimension 0 can be shown")
    turn = int(p.device_mesh.get_local_rank(axis))
    row = math.prod(p.shape[1:])
    share = math.ceil(p.shape[0] / _shards(p)) * row
    return turn, share, min(turn * share, p.numel())
