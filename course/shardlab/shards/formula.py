"""How flat buffers are sharded, computed from tensor sizes.

ZeRO (arXiv 1910.02054, section 5) shards optimizer state from stage 1 on, gradients from stage 2,
parameters at stage 3. Implementations differ in what they flatten before they shard it:

    "flat"    all tensors in one buffer, cut into N equal shards: DeepSpeed's stages 1 and 2
    "tensor"  each tensor is flattened and cut separately: DeepSpeed's stage 3
    "rows"    each tensor is cut separately, between rows of its first dimension: FSDP2
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from shardlab.estimate.memory import PRECISION_BYTES, STATE_BYTES
from shardlab.shards.layout import EVERY_RANK, PADDING, Layout, Segment

CUTS = ("flat", "tensor", "rows")
SHARDED_FROM_STAGE = {"optimizer": 1, "gradients": 2, "parameters": 3}


def flat(
    tensors: Any,
    world_size: int,
    *,
    stage: int = 0,
    precision: str = "bf16",
    optimizer: str = "adam",
    cut: str | None = None,
    alignment: int = 1,
) -> Layout:
    """The layout of a model's flat buffers on ``world_size`` ranks at a ZeRO stage.

    tensors: a module, or a mapping of names to element counts or shapes.
    precision, optimizer: as in `shardlab.estimate.memory`; they set the bytes per element.
    cut: one of CUTS; by default "tensor" at stage 3 and "flat" below, as in DeepSpeed.
    alignment: of a "flat" shard, in elements (DeepSpeed: 2, or 4 bytes in 16 bit).

        flat({"w": 8, "b": 2, "v": 8}, 2, stage=1, alignment=2).segments["optimizer"]
        rank 0: w[0:8] b[0:2]    rank 1: v[0:8] and 2 elements of padding

    Raises ValueError for an unknown name or a world size below 1.
    """
    named = shapes_of(tensors)
    recipe = {
        "shapes": list(named.values()),
        "cut": cut,
        "alignment": alignment,
        "precision": precision,
        "optimizer": optimizer,
    }
    cut = cut or ("tensor" if stage == 3 else "flat")
    _check(world_size, stage, precision, optimizer, cut, alignment)
    sizes = [(name, math.prod(shape)) for name, shape in named.items()]
    units = cut_units(list(named.values()), cut, alignment)
    cut_parts = list(_cut_all([numel for _, numel in sizes], units, world_size, stage))
    length = sum(numel for _, numel, *_ in cut_parts)
    per_element = element_bytes(precision, optimizer)
    segments: dict[str, tuple[Segment, ...]] = {}
    for buffer, size in per_element.items():
        if not size:
            segments[buffer] = ()
        elif stage >= SHARDED_FROM_STAGE[buffer]:
            segments[buffer] = tuple(
                Segment(at, numel, tensor, start, rank, _int_if_whole(numel * size))
                for at, numel, tensor, start, rank in cut_parts
            )
        else:
            # Parameters are gathered into the buffer that was cut, so every rank has its padding.
            padded = buffer == "parameters"
            segments[buffer] = tuple(
                Segment(at, numel, tensor, 0, EVERY_RANK, _int_if_whole(numel * size))
                for at, numel, tensor in _join(cut_parts)
                if padded or tensor != PADDING
            )
    units_cut = {"flat": "one flat buffer", "tensor": "each tensor", "rows": "each tensor's rows"}
    detail = f", {units_cut[cut]} cut in {world_size}" if stage and world_size > 1 else ""
    source = f"formula, stage {stage}{detail}"
    return Layout(world_size, stage, source, tuple(sizes), segments, length, recipe)


def shapes_of(tensors: Any) -> dict[str, tuple[int, ...]]:
    """{name: shape} of a module's parameters (tied parameters once), or of a mapping."""
    if hasattr(tensors, "named_parameters"):
        tensors = {name: tuple(p.shape) for name, p in tensors.named_parameters()}
    pairs: Iterable[tuple[str, Any]] = tensors.items() if isinstance(tensors, Mapping) else tensors
    shapes = {
        name: (size,) if isinstance(size, int) else tuple(int(axis) for axis in size)
        for name, size in pairs
    }
    if not shapes or any(math.prod(shape) < 1 for shape in shapes.values()):
        raise ValueError("pass at least one tensor, each with at least one element")
    return shapes


def element_bytes(precision: str, optimizer: str) -> dict[str, float]:
    """Bytes of one element, by buffer; the fp32 master copy counts as optimizer state."""
    parameter, gradient, master = PRECISION_BYTES[precision]
    return {
        "parameters": parameter,
        "gradients": gradient,
        "optimizer": master + STATE_BYTES[optimizer],
    }


def cut_units(
    shapes: Sequence[tuple[int, ...]], cut: str, alignment: int
) -> list[tuple[list[int], int]]:
    """The units to cut: (indices of their tensors, elements that a shard is a multiple of)."""
    if cut == "flat":
        return [(list(range(len(shapes))), alignment)]
    grains = [math.prod(shape[1:]) if cut == "rows" else 1 for shape in shapes]
    return [([index], grain) for index, grain in enumerate(grains)]


def _cut_all(
    numels: Sequence[int], units: Iterable[tuple[list[int], int]], world_size: int, stage: int
) -> Iterator[tuple[int, int, int, int, int]]:
    """(at, numel, tensor, start, rank) of every part, from left to right."""
    at = 0
    for indices, grain in units:
        total = sum(numels[index] for index in indices)
        share = math.ceil(total / (world_size * grain)) * grain if stage else total
        padding = share * world_size - total if stage else 0
        base = at
        for index, numel in [*((i, numels[i]) for i in indices), (PADDING, padding)]:
            start = 0
            while start < numel:
                rank = (at - base) // share
                step = min(numel - start, base + (rank + 1) * share - at)
                yield at, step, index, start if index != PADDING else 0, rank
                at, start = at + step, start + step


def _join(parts: Iterable[tuple[int, int, int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Rejoin parts of the same tensor: (at, numel, tensor)."""
    last: tuple[int, int, int] | None = None
    for at, numel, tensor, start, _ in parts:
        if last and last[2] == tensor and (start or tensor == PADDING):
            last = (last[0], last[1] + numel, tensor)
            continue
        if last:
            yield last
        last = (at, numel, tensor)
    if last:
        yield last


def _int_if_whole(size: float) -> float:
    """Only 8-bit Adam has fractional bytes."""
    return int(size) if size == int(size) else size


def _check(
    world_size: int, stage: int, precision: str, optimizer: str, cut: str, alignment: int
) -> None:
    if world_size < 1 or alignment < 1:
        raise ValueError(f"world_size={world_size}, alignment={alignment}: both must be at least 1")
    for name, value, known in (
        ("stage", stage, (0, 1, 2, 3)),
        ("precision", precision, tuple(PRECISION_BYTES)),
        ("optimizer", optimizer, tuple(STATE_BYTES)),
        ("cut", cut, CUTS),
    ):
        if value not in known:
            raise ValueError(f"{name}={value!r}: expected one of {', '.join(map(str, known))}")
