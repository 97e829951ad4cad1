"""The memory that tensors actually occupy: their elements, and padding in their storages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shardlab.shards.layout import PADDING

Part = tuple[int, int, int, int, float]  # at, numel, tensor, start, bytes: see layout.report


class LocalSlice(NamedTuple):
    """One rank's slice of one tensor, and the room it has in the flat buffer."""

    tensor: int
    at: int
    start: int  # element of the whole, flattened tensor
    room: int  # elements of the rank's shard, including padding
    data: Tensor


def stored_parts(slices: Iterable[LocalSlice]) -> list[Part]:
    """The slices, and padding for the elements that their storages hold between and after them.

    Each storage counts once. Elements beyond a slice's room are ignored: they belong to another
    rank's slice.
    """
    by_storage: dict[int, list[LocalSlice]] = {}
    for local in slices:
        by_storage.setdefault(local.data.untyped_storage().data_ptr(), []).append(local)
    parts: list[Part] = []
    for sharing in by_storage.values():
        sharing.sort(key=lambda local: local.data.storage_offset())
        size = sharing[0].data.element_size()
        end = sharing[0].data.untyped_storage().nbytes() // size
        offsets = [int(local.data.storage_offset()) for local in sharing]
        for local, offset, following in zip(sharing, offsets, [*offsets[1:], end], strict=True):
            numel = local.data.numel()
            padding = min(following - offset, local.room) - numel
            if numel:
                parts.append((local.at, numel, local.tensor, local.start, numel * size))
            if padding > 0:
                parts.append((local.at + numel, padding, PADDING, 0, padding * size))
    return parts


def merge_parts(*lists: Iterable[Part]) -> list[Part]:
    """Merge parts at the same place, such as two optimizer states, by adding their bytes."""
    total: dict[tuple[int, int, int, int], float] = {}
    for parts in lists:
        for at, numel, tensor, start, size in parts:
            key = (at, numel, tensor, start)
            total[key] = total.get(key, 0) + size
    return [(*key, size) for key, size in total.items()]


def states_of(optimizer: Any, parameter: Any) -> list[Tensor]:
    """An optimizer's tensors with one element for each element of the parameter."""
    state: Mapping[str, Any] = optimizer.state.get(parameter, {})
    return [
        value
        for value in state.values()
        if isinstance(value, Tensor) and value.dim() and value.numel() == parameter.numel()
    ]


def local_tensor(tensor: Tensor) -> Tensor:
    """A DTensor's local tensor; a plain tensor unchanged."""
    to_local = getattr(tensor, "to_local", None)
    local: Tensor = to_local() if to_local else tensor
    with torch.no_grad():
        return local.detach()
