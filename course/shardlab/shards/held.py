"""What tensors really occupy: elements in use, and what else their storages hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shardlab.shards.layout import PADDING

Part = tuple[int, int, int, int, float]  # at, numel, tensor, start, bytes: see layout.report


class Local(NamedTuple):
    """One rank's slice of one tensor, and the room it has on the flat buffer."""

    tensor: int
    at: int
    start: int  # element of the whole, flattened tensor
    room: int  # elements of the rank's share, padding included
    data: Tensor


def occupied(slices: Iterable[Local]) -> list[Part]:
    """The slices, and as padding what their storages hold between and after them.

    A storage counts once. What it holds beyond a slice's room belongs to none of the slices'
    ranks and is left out.
    """
    by_storage: dict[int, list[Local]] = {}
    for local in slices:
        by_storage.setdefault(local.data.untyped_storage().data_ptr(), []).append(local)
    parts: list[Part] = []
    for together in by_storage.values():
        together.sort(key=lambda local: local.data.storage_offset())
        size = together[0].data.element_size()
        end = together[0].data.untyped_storage().nbytes() // size
        offsets = [int(local.data.storage_offset()) for local in together]
        for local, offset, following in zip(together, offsets, [*offsets[1:], end], strict=True):
            numel = local.data.numel()
            padding = min(following - offset, local.room) - numel
            if numel:
                parts.append((local.at, numel, local.tensor, local.start, numel * size))
            if padding > 0:
                parts.append((local.at + numel, padding, PADDING, 0, padding * size))
    return parts


def added(*lists: Iterable[Part]) -> list[Part]:
    """Parts of the same place as one: two states of an element are held by the same rank."""
    total: dict[tuple[int, int, int, int], float] = {}
    for parts in lists:
        for at, numel, tensor, start, size in parts:
            key = (at, numel, tensor, start)
            total[key] = total.get(key, 0) + size
    return [(*key, size) for key, size in total.items()]


def states_of(optimizer: Any, parameter: Any) -> list[Tensor]:
    """An optimizer's tensors that have an element for each of the parameter's."""
    state: Mapping[str, Any] = optimizer.state.get(parameter, {})
    return [
        value
        for value in state.values()
        if isinstance(value, Tensor) and value.dim() and value.numel() == parameter.numel()
    ]


def local_tensor(tensor: Tensor) -> Tensor:
    """A DTensor's part on this rank; a plain tensor as it is."""
    to_local = getattr(tensor, "to_local", None)
    local: Tensor = to_local() if to_local else tensor
    with torch.no_grad():
        return local.detach()
