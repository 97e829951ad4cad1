"""The layout of a DeepSpeed engine, stages 0 to 3, read from its data structures (0.19.8)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch.distributed as dist

from shardlab.shards.layout import PADDING, report
from shardlab.shards.storages import LocalSlice, Part, merge_parts, states_of, stored_parts

Held = dict[str, list[Part]]  # parts by buffer
Place = tuple[int, int, int]  # (at, numel, tensor) in a group's flat buffer


def of_deepspeed(engine: Any) -> dict[str, Any]:
    """What this rank holds of ``engine`` now; return it from fn, for `gather`.

    Stages 1 and 2 cut the flat buffer of each parameter group into equal shards, even within a
    tensor; stage 3 cuts each tensor. Gradients are those in memory now: none before backward and
    after step, except that stage 3 keeps its buffer. If a tensor spans two ranks, both have its
    whole gradient: DeepSpeed keeps the tensor and uses a slice. Optimizer state includes the fp32
    master copies; before the first step, it is only those. Scalars, such as Adam's step, and
    buckets are not included.

    Raises ValueError for an engine that is not purely data parallel, or an unknown optimizer.
    """
    world_size, rank = dist.get_world_size(), dist.get_rank()
    if engine.dp_world_size != world_size:
        raise ValueError(
            f"{engine.dp_world_size} data-parallel ranks of {world_size}: only pure data "
            "parallelism is supported"
        )
    stage = int(engine.zero_optimization_stage())
    tensors = [(name, _numel(p)) for name, p in engine.module.named_parameters()]
    read = {0: _read_stage_0, 1: _read_flat, 2: _read_flat, 3: _read_stage_3}[stage]
    held, length = read(engine, rank, world_size)
    return report(
        rank=rank,
        world_size=world_size,
        stage=stage,
        source=f"DeepSpeed, stage {stage}, {world_size} ranks",
        tensors=tensors,
        length=length,
        held=held,
    )


def _numel(p: Any) -> int:
    return int(getattr(p, "ds_numel", p.numel()))


def _indices(engine: Any) -> dict[int, int]:
    """{id(parameter): its index}"""
    return {id(p): index for index, p in enumerate(engine.module.parameters())}


def _replicated(parameters: list[Any], index_of: dict[int, int], at: int) -> tuple[Held, int]:
    """Tensors that every rank has whole, laid out from ``at``, and the end of the last one."""
    places = []
    for p in parameters:
        places.append((index_of[id(p)], at, p))
        at += p.numel()
    held = {
        "parameters": stored_parts(
            LocalSlice(i, a, 0, p.numel(), p.detach()) for i, a, p in places
        ),
        "gradients": stored_parts(
            LocalSlice(i, a, 0, p.numel(), p.grad) for i, a, p in places if p.grad is not None
        ),
        "optimizer": [],
    }
    return held, at


# ---- stage 0: everything on every rank ----


def _read_stage_0(engine: Any, rank: int, world_size: int) -> tuple[Held, int]:
    parameters = list(engine.module.parameters())
    held, length = _replicated(parameters, _indices(engine), 0)
    places, at = {}, 0
    for index, p in enumerate(parameters):
        places[id(p)] = (index, at)
        at += p.numel()
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    lists = []
    for p, master in _masters(engine.optimizer, parameters):
        own = [] if master is p else [master]
        for state in [*own, *states_of(inner, master)]:
            lists.append(stored_parts([LocalSlice(*places[id(p)], 0, p.numel(), state)]))
    held["optimizer"] = merge_parts(*lists)
    return held, length


def _masters(optimizer: Any, parameters: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Pairs of a parameter and the master copy that the optimizer updates."""
    if hasattr(optimizer, "fp16_groups") and hasattr(optimizer, "fp32_groups"):
        for group, masters in zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True):
            yield from zip(group, masters, strict=True)
    elif hasattr(optimizer, "param_groups") and not hasattr(optimizer, "optimizer"):
        for group in optimizer.param_groups:
            yield from ((p, p) for p in group["params"])
    else:
        raise ValueError(
            f"cannot read the state of {type(optimizer).__name__}: use a torch optimizer, or ZeRO "
            "stage 1 to 3"
        )


# ---- stages 1 and 2: the flat buffer of each group is sharded ----


def _read_flat(engine: Any, rank: int, world_size: int) -> tuple[Held, int]:
    zero = engine.optimizer
    index_of = _indices(engine)
    held: Held = {"parameters": [], "gradients": [], "optimizer": []}
    kept: list[_GradientSlice] = []
    base, grouped = 0, set()
    for group, ordered in enumerate(zero.round_robin_bit16_groups):
        buffer = zero.bit16_groups_flat[group]
        size = buffer.element_size()
        places = list(_places(zero, group, ordered, index_of))
        grouped |= {id(p) for p in ordered}
        held["parameters"] += [
            (base + at, numel, tensor, 0, numel * size) for at, numel, tensor in places
        ]
        held["gradients"] += stored_parts(
            LocalSlice(index_of[id(p)], base + at, 0, p.numel(), p.grad)
            for p, (at, _, tensor) in zip(ordered, _without_padding(places), strict=True)
            if p.grad is not None
        )
        slices, padding = _reduced_gradients(zero, group, rank, base, index_of, places)
        kept += slices
        held["gradients"] += padding
        held["optimizer"] += _optimizer_shard(zero, group, rank, base, places)
        base += buffer.numel()
    held["gradients"] += _gradient_parts(kept)
    frozen = [p for p in engine.module.parameters() if id(p) not in grouped]
    replicated, length = _replicated(frozen, index_of, base)
    return {name: [*held[name], *replicated[name]] for name in held}, length


def _places(zero: Any, group: int, ordered: list[Any], index_of: dict[int, int]) -> Iterator[Place]:
    """The tensors and the padding in a group's flat buffer, in order."""
    end = 0
    for p, at in zip(ordered, zero.round_robin_bit16_offsets[group], strict=True):
        if at > end:
            yield end, at - end, PADDING
        yield at, p.numel(), index_of[id(p)]
        end = at + p.numel()
    if (padding := zero.bit16_groups_flat[group].numel() - end) > 0:
        yield end, padding, PADDING


def _without_padding(places: list[Place]) -> list[Place]:
    return [place for place in places if place[2] != PADDING]


def _optimizer_shard(
    zero: Any, group: int, rank: int, base: int, places: list[Place]
) -> list[Part]:
    """The rank's shard of the fp32 master copies and the optimizer states."""
    master = zero.single_partition_of_fp32_groups[group]
    each = sum(state.element_size() for state in [master, *states_of(zero.optimizer, master)])
    first = master.numel() * rank
    parts: list[Part] = []
    for at, numel, tensor in places:
        start = max(at, first)
        stop = min(at + numel, first + master.numel())
        if start < stop:
            inside = start - at if tensor != PADDING else 0
            parts.append((base + start, stop - start, tensor, inside, (stop - start) * each))
    return parts


class _GradientSlice(NamedTuple):
    """A reduced gradient that this rank keeps: a slice of a tensor."""

    numel: int  # of the whole tensor
    tensor: int
    at: int  # of the whole tensor, in the flat buffer
    start: int  # of the slice, in the tensor
    gradient: Any


def _reduced_gradients(
    zero: Any, group: int, rank: int, base: int, index_of: dict[int, int], places: list[Place]
) -> tuple[list[_GradientSlice], list[Part]]:
    """The reduced gradients of the rank's shard that are in memory now, and their padding."""
    at_of = {tensor: at for at, _, tensor in _without_padding(places)}
    shard_numel = int(zero.partition_size[group])
    mine = iter(zero.params_in_partition[group])
    kept: list[_GradientSlice] = []
    padding: list[Part] = []
    filled = 0
    for gradient in zero.averaged_gradients.get(group) or ():
        if getattr(gradient, "_zero_padding", False) or (p := next(mine, None)) is None:
            at, numel = base + rank * shard_numel + filled, int(gradient.numel())
            padding.append((at, numel, PADDING, 0, numel * gradient.element_size()))
        else:
            tensor = index_of[id(p)]
            start = int(zero.grad_start_offset[group][rank][zero.get_param_id(p)])
            kept.append(_GradientSlice(p.numel(), tensor, base + at_of[tensor], start, gradient))
        filled += int(gradient.numel())
    return kept, padding


def _gradient_parts(kept: list[_GradientSlice]) -> list[Part]:
    """The slices, or the whole tensors if their storage is large enough for all of them."""
    by_storage: dict[int, list[_GradientSlice]] = {}
    for each in kept:
        by_storage.setdefault(each.gradient.untyped_storage().data_ptr(), []).append(each)
    parts: list[Part] = []
    for sharing in by_storage.values():
        size = sharing[0].gradient.element_size()
        capacity = sharing[0].gradient.untyped_storage().nbytes() // size
        keeps_whole = capacity == sum(each.numel for each in sharing)
        for each in sharing:
            start, numel = (each.start, int(each.gradient.numel()))
            if keeps_whole:
                start, numel = 0, each.numel
            parts.append((each.at + start, numel, each.tensor, start, numel * size))
    return parts


# ---- stage 3: each tensor is sharded ----


def _read_stage_3(engine: Any, rank: int, world_size: int) -> tuple[Held, int]:
    zero = engine.optimizer
    places, length = {}, 0
    held: Held = {"parameters": [], "gradients": [], "optimizer": []}
    for index, p in enumerate(engine.module.parameters()):
        shard_numel = int(p.partition_numel())
        places[id(p)] = (index, length)
        size = p.ds_tensor.element_size()
        held["parameters"] += _shard(p, places[id(p)], rank, size)
        if p.numel() == p.ds_numel and p.ds_status.name == "AVAILABLE":
            # Gathered now, like small persistent parameters: whole, in addition to the shard.
            held["parameters"].append((length, p.ds_numel, index, 0, p.ds_numel * p.element_size()))
        length += shard_numel * world_size
    buffer = zero.grad_partitions_flat_buffer
    for group, master in zip(zero.fp16_groups, zero.fp32_partitioned_groups_flat, strict=True):
        # In fp32 the "master" may be the parameters' own shard, which takes no extra memory.
        shared = {p.ds_tensor.untyped_storage().data_ptr() for p in group}
        own = [] if master.untyped_storage().data_ptr() in shared else [master]
        each = sum(t.element_size() for t in [*own, *states_of(zero.optimizer, master)])
        for p in group:
            if buffer is not None:
                held["gradients"] += _shard(p, places[id(p)], rank, buffer.element_size())
            if each:
                held["optimizer"] += _shard(p, places[id(p)], rank, each)
    return held, length


def _shard(p: Any, place: tuple[int, int], rank: int, size: int) -> list[Part]:
    """This rank's shard of one tensor, and its padding."""
    index, base = place
    shard_numel = int(p.partition_numel())
    start = min(rank * shard_numel, int(p.ds_numel))
    numel = min(shard_numel, int(p.ds_numel) - start)
    parts: list[Part] = []
    if numel:
        parts.append((base + start, numel, index, start, numel * size))
    if shard_numel > numel:
        padding = shard_numel - numel
        parts.append((base + rank * shard_numel + numel, padding, PADDING, 0, padding * size))
    return parts
