"""The layout of a model under FSDP2 (`fully_shard`), read from its DTensors."""

from __future__ import annotations

import math
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from shardlab.shards.layout import report
from shardlab.shards.storages import (
    LocalSlice,
    local_tensor,
    merge_parts,
    states_of,
    stored_parts,
)


def of_fsdp2(model: nn.Module, optimizer: Any = None) -> dict[str, Any]:
    """What this rank holds of ``model`` now; return it from fn, for `gather`.

    Each tensor is split between rows of its first dimension, with the same number of rows per rank.
    The last shards are padded in parameters and gradients, but not in optimizer state. Gradients
    that are None (before backward, after zero_grad) take no memory. Scalars, such as Adam's step,
    are not included.

    Raises ValueError for tensors sharded along another dimension, or along two mesh axes.
    """
    world_size, rank = dist.get_world_size(), dist.get_rank()
    parameters: list[LocalSlice] = []
    gradients: list[LocalSlice] = []
    states: list[list[LocalSlice]] = []
    tensors, length = [], 0
    for index, (name, p) in enumerate(model.named_parameters()):
        shard_index, shard_numel, start = _shard(name, p)
        at = length + shard_index * shard_numel
        tensors.append((name, p.numel()))

        def local_slice(
            data: Tensor,
            index: int = index,
            at: int = at,
            start: int = start,
            room: int = shard_numel,
        ) -> LocalSlice:
            return LocalSlice(index, at, start, room, local_tensor(data))

        parameters.append(local_slice(p))
        if p.grad is not None:
            gradients.append(local_slice(p.grad))
        for number, state in enumerate(states_of(optimizer, p) if optimizer else []):
            if number == len(states):
                states.append([])
            states[number].append(local_slice(state))
        length += shard_numel * _number_of_shards(p)
    return report(
        rank=rank,
        world_size=world_size,
        stage=None,
        source=f"FSDP2 on {world_size} ranks",
        tensors=tensors,
        length=length,
        held={
            "parameters": stored_parts(parameters),
            "gradients": stored_parts(gradients),
            "optimizer": merge_parts(*map(stored_parts, states)),
        },
    )


def _shard_axis(p: Any) -> int | None:
    """The mesh axis that shards a tensor; None: each rank has it whole."""
    axes = [
        axis for axis, kind in enumerate(getattr(p, "placements", ())) if not kind.is_replicate()
    ]
    return axes[0] if axes else None


def _number_of_shards(p: Any) -> int:
    axis = _shard_axis(p)
    return 1 if axis is None else int(p.device_mesh.size(axis))


def _shard(name: str, p: Any) -> tuple[int, int, int]:
    """(index of this rank's shard, elements of a shard with padding, its start in the tensor)."""
    placements = getattr(p, "placements", ())
    sharded = [kind for kind in placements if not kind.is_replicate()]
    axis = _shard_axis(p)
    if axis is None:
        return 0, p.numel(), 0
    if len(sharded) > 1 or not sharded[0].is_shard(0):
        raise ValueError(f"{name} has placements {placements}: only Shard(0) can be shown")
    index = int(p.device_mesh.get_local_rank(axis))
    row_numel = math.prod(p.shape[1:])
    shard_numel = math.ceil(p.shape[0] / _number_of_shards(p)) * row_numel
    return index, shard_numel, min(index * shard_numel, p.numel())
