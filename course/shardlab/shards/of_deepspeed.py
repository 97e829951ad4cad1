"""The layout of a DeepSpeed engine, stages 0 to 3, read from its own structures (0.19.8)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch.distributed as dist

from shardlab.shards.held import Local, Part, added, occupied, states_of
from shardlab.shards.layout import PADDING, report

Held = dict[str, list[Part]]
Place = tuple[int, int, int]  # at, numel, tensor: of a group's flat buffer


def of_deepspeed(engine: Any) -> dict[str, Any]:
    """What this rank holds at this moment; to be returned by fn, for `gather`.

    Stages 1 and 2 cut the flat buffer of each parameter group in equal shares, whatever tensor a
    border runs through; stage 3 cuts each tensor. Gradients are those in memory now: none before
    backward and after step, but for stage 3, which keeps its buffer. A tensor that two ranks share
    has its gradient whole on both: DeepSpeed keeps the tensor and uses a slice.
    Optimizer state counts fp32 masters; before the first step they are all there is. Scalars, such
    as Adam's step, are left out, and so are buckets.

    Raises ValueError for an engine that is more than data parallel, or an optimizer unknown here.
    """
    world_size, rank = dist.get_world_size(), dist.get_rank()
    if engine.dp_world_size != world_size:
        raise ValueError(
            f"{engine.dp_world_size} data-parallel ranks of {world_size}: only layouts of plain "
            "data parallelism can be read"
        )
    stage = int(engine.zero_optimization_stage())
    tensors = [(name, _numel(p)) for name, p in engine.module.named_parameters()]
    held, length = {0: _whole, 1: _flat, 2: _flat, 3: _by_tensor}[stage](engine, rank, world_size)
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
    """The index of a parameter, by its id()."""
    return {id(p): index for index, p in enumerate(engine.module.parameters())}


def _copies(parameters: list[Any], index_of: dict[int, int], at: int) -> tuple[Held, int]:
    """Tensors that every rank has whole, one after another from ``at``."""
    places = []
    for p in parameters:
        places.append((index_of[id(p)], at, p))
        at += p.numel()
    held = {
        "parameters": occupied(Local(i, a, 0, p.numel(), p.detach()) for i, a, p in places),
        "gradients": occupied(
            Local(i, a, 0, p.numel(), p.grad) for i, a, p in places if p.grad is not None
        ),
        "optimizer": [],
    }
    return held, at


# ---- stage 0: everything everywhere ----


def _whole(engine: Any, rank: int, world_size: int) -> tuple[Held, int]:
    parameters = list(engine.module.parameters())
    held, length = _copies(parameters, _indices(engine), 0)
    places, at = {}, 0
    for index, p in enumerate(parameters):
        places[id(p)] = (index, at)
        at += p.numel()
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    lists = []
    for p, master in _masters(engine.optimizer, parameters):
        own = [] if master is p else [master]
        for state in [*own, *states_of(inner, master)]:
            lists.append(occupied([Local(*places[id(p)], 0, p.numel(), state)]))
    held["optimizer"] = added(*lists)
    return held, length


def _masters(optimizer: Any, parameters: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Pairs of a parameter and what the optimizer updates in its stead."""
    if hasattr(optimizer, "fp16_groups") and hasattr(optimizer, "fp32_groups"):
        for group, masters in zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True):
            yield from zip(group, masters, strict=True)
    elif hasattr(optimizer, "param_groups") and not hasattr(optimizer, "optimizer"):
        for group in optimizer.param_groups:
            yield from ((p, p) for p in group["params"])
    else:
        raise ValueError(
            f"how {type(optimizer).__name__} lays out its state is not known here: use a torch "
            "optimizer, or ZeRO stage 1 to 3"
        )


# ---- stages 1 and 2: the flat buffer of each group is cut ----


def _flat(engine: Any, rank: int, world_size: int) -> tuple[Held, int]:
    zero = engine.optimizer
    index_of = _indices(engine)
    held: Held = {"parameters": [], "gradients": [], "optimizer": []}
    kept: list[_Kept] = []
    base, grouped = 0, set()
    for group, ordered in enumerate(zero.round_robin_bit16_groups):
        buffer = zero.bit16_groups_flat[group]
        size = buffer.element_size()
        line = list(_line(zero, group, ordered, index_of))  # (at, numel, tensor)
        grouped |= {id(p) for p in ordered}
        held["parameters"] += [
            (base + at, numel, tensor, 0, numel * size) for at, numel, tensor in line
        ]
        held["gradients"] += occupied(
            Local(index_of[id(p)], base + at, 0, p.numel(), p.grad)
            for p, (at, _, tensor) in zip(ordered, _tensors(line), strict=True)
            if p.grad is not None
        )
        slices, padding = _averaged(zero, group, rank, base, index_of, line)
        kept += slices
        held["gradients"] += padding
        held["optimizer"] += _slice_of_state(zero, group, rank, base, line)
        base += buffer.numel()
    held["gradients"] += _gradients(kept)
    frozen = [p for p in engine.module.parameters() if id(p) not in grouped]
    copies, length = _copies(frozen, index_of, base)
    return {name: [*held[name], *copies[name]] for name in held}, length


def _line(zero: Any, group: int, ordered: list[Any], index_of: dict[int, int]) -> Iterator[Place]:
    """What stands where in a group's flat buffer: (at, numel, tensor), padding included."""
    end = 0
    for p, at in zip(ordered, zero.round_robin_bit16_offsets[group], strict=True):
        if at > end:
            yield end, at - end, PADDING
        yield at, p.numel(), index_of[id(p)]
        end = at + p.numel()
    if (padding := zero.bit16_groups_flat[group].numel() - end) > 0:
        yield end, padding, PADDING


def _tensors(line: list[Place]) -> list[Place]:
    return [part for part in line if part[2] != PADDING]


def _slice_of_state(zero: Any, group: int, rank: int, base: int, line: list[Place]) -> list[Part]:
    """The rank's share of fp32 masters and of what the optimizer keeps for them."""
    master = zero.single_partition_of_fp32_groups[group]
    each = sum(state.element_size() for state in [master, *states_of(zero.optimizer, master)])
    first = master.numel() * rank
    parts: list[Part] = []
    for at, numel, tensor in line:
        start = max(at, first)
        stop = min(at + numel, first + master.numel())
        if start < stop:
            inside = start - at if tensor != PADDING else 0
            parts.append((base + start, stop - start, tensor, inside, (stop - start) * each))
    return parts


class _Kept(NamedTuple):
    """A reduced gradient that this rank keeps: a slice of a tensor."""

    numel: int  # of the whole tensor
    tensor: int
    at: int  # of the whole tensor, on the flat buffer
    start: int  # of the slice, in the tensor
    gradient: Any


def _averaged(
    zero: Any, group: int, rank: int, base: int, index_of: dict[int, int], line: list[Place]
) -> tuple[list[_Kept], list[Part]]:
    """Gradients that were reduced for the rank's share, while they are kept; and padding."""
    place = {tensor: at for at, _, tensor in _tensors(line)}
    share = int(zero.partition_size[group])
    mine = iter(zero.params_in_partition[group])
    kept: list[_Kept] = []
    padding: list[Part] = []
    filled = 0
    for gradient in zero.averaged_gradients.get(group) or ():
        if getattr(gradient, "_zero_padding", False) or (p := next(mine, None)) is None:
            at, numel = base + rank * share + filled, int(gradient.numel())
            padding.append((at, numel, PADDING, 0, numel * gradient.element_size()))
        else:
            tensor = index_of[id(p)]
            start = int(zero.grad_start_offset[group][rank][zero.get_param_id(p)])
            kept.append(_Kept(p.numel(), tensor, base + place[tensor], start, gradient))
        filled += int(gradient.numel())
    return kept, padding


def _gradients(kept: list[_Kept]) -> list[Part]:
    """The slices; or, where a storage is as large as its tensors together, the whole tensors."""
    by_storage: dict[int, list[_Kept]] = {}
    for each in kept:
        by_storage.setdefault(each.gradient.untyped_storage().data_ptr(), []).append(each)
    parts: list[Part] = []
    for together in by_storage.values():
        size = together[0].gradient.element_size()
        room = together[0].gradient.untyped_storage().nbytes() // size
        keeps_whole = room == sum(each.numel for each in together)
        for each in together:
            start, numel = (each.start, int(each.gradient.numel()))
            if keeps_whole:
                start, numel = 0, each.numel
            parts.append((each.at + start, numel, each.tensor, start, numel * size))
    return parts


# ---- stage 3: each tensor is cut ----


def _by_tensor(engine: Any, rank: int, world_size: int) -> tuple[Held, int]:
    zero = engine.optimizer
    places, length = {}, 0
    held: Held = {"parameters": [], "gradients": [], "optimizer": []}
    for index, p in enumerate(engine.module.parameters()):
        share = int(p.partition_numel())
        places[id(p)] = (index, length)
        size = p.ds_tensor.element_size()
        held["parameters"] += _shard(p, places[id(p)], rank, size)
        if p.numel() == p.ds_numel and p.ds_status.name == "AVAILABLE":
            # Gathered now, as small parameters are that persist: whole, beside the shard.
            held["parameters"].append((length, p.ds_numel, index, 0, p.ds_numel * p.element_size()))
        length += share * world_size
    buffer = zero.grad_partitions_flat_buffer
    for group, master in zip(zero.fp16_groups, zero.fp32_partitioned_groups_flat, strict=True):
        # In fp32 the "master" may be the parameters' own shard: then it takes no room.
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
    """This rank's share of one tensor, and the padding behind it."""
    index, base = place
    share = int(p.partition_numel())
    start = min(rank * share, int(p.ds_numel))
    numel = min(share, int(p.ds_numel) - start)
    parts: list[Part] = []
    if numel:
        parts.append((base + start, numel, index, start, numel * size))
    if share > numel:
        padding = share - numel
        parts.append((base + rank * share + numel, padding, PADDING, 0, padding * size))
    return parts
