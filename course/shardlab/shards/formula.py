"""Where flat buffers are cut, from sizes alone.

ZeRO (arXiv 1910.02054, section 5) cuts optimizer state from stage 1 on, gradients from stage 2,
parameters at stage 3. Implementations differ in what they lay out flat before cutting:

    "flat"    all tensors in one buffer, cut in N equal shares: DeepSpeed's stages 1 and 2
    "tensor"  each tensor by itself, flattened: DeepSpeed's stage 3
    "rows"    each tensor by itself, between rows of its first dimension: FSDP2
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from shardlab.estimate.memory import PRECISION_BYTES, STATE_BYTES
from shardlab.shards.layout import EVERY_RANK, PADDING, Layout, Segment

CUTS = ("flat", "tensor", "rows")
FIRST_CUT_AT = {"optimizer": 1, "gradients": 2, "parameters": 3}  # the stage, by buffer


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
    precision, optimizer: as in `shardlab.estimate.memory`; they set the bytes of an element.
    cut: one of CUTS; by default "tensor" at stage 3 and "flat" below, as in DeepSpeed.
    alignment: of a "flat" share, in elements (DeepSpeed: 2, for 4 bytes of 16-bit numbers).

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
    shared = list(_cut_all([numel for _, numel in sizes], units, world_size, stage))
    length = sum(numel for _, numel, *_ in shared)
    per_element = element_bytes(precision, optimizer)
    segments: dict[str, tuple[Segment, ...]] = {}
    for buffer, size in per_element.items():
        if not size:
            segments[buffer] = ()
        elif stage >= FIRST_CUT_AT[buffer]:
            segments[buffer] = tuple(
                Segment(at, numel, tensor, start, rank, _whole(numel * size))
                for at, numel, tensor, start, rank in shared
            )
        else:
            # Parameters are gathered into the buffer that was cut: its padding is everywhere.
            padded = buffer == "parameters"
            segments[buffer] = tuple(
                Segment(at, numel, tensor, 0, EVERY_RANK, _whole(numel * size))
                for at, numel, tensor in _join(shared)
                if padded or tensor != PADDING
            )
    words = {"flat": "one flat buffer", "tensor": "each tensor", "rows": "each tensor's rows"}
    told = f", {words[cut]} cut in {world_size}" if stage and world_size > 1 else ""
    source = f"formula, stage {stage}{told}"
    return Layout(world_size, stage, source, tuple(sizes), segments, length, recipe)


def shapes_of(tensors: Any) -> dict[str, tuple[int, ...]]:
    """{name: shape} of a module's parameters (tied ones once), or of a mapping."""
    if hasattr(tensors, "named_parameters"):
        tensors = {name: tuple(p.shape) for name, p in tensors.named_parameters()}
    pairs: Iterable[tuple[str, Any]] = tensors.items() if isinstance(tensors, Mapping) else tensors
    shapes = {
        name: (size,) if isinstance(size, int) else tuple(int(axis) for axis in size)
        for name, size in pairs
    }
    if not shapes or any(math.prod(shape) < 1 for shape in shapes.values()):
        raise ValueError("give at least one tensor, each with at least one element")
    return shapes


def element_bytes(precision: str, optimizer: str) -> dict[str, float]:
    """Bytes of one element, by buffer; the fp32 master is the optimizer's."""
    parameter, gradient, master = PRECISION_BYTES[precision]
    return {
        "parameters": parameter,
        "gradients": gradient,
        "optimizer": master + STATE_BYTES[optimizer],
    }


def cut_units(
    shapes: Sequence[tuple[int, ...]], cut: str, alignment: int
) -> list[tuple[list[int], int]]:
    """What is cut as one: (indices of its tensors, elements that a share is a multiple of)."""
    if cut == "flat":
        return [(list(range(len(shapes))), alignment)]
    grains = [math.prod(shape[1:]) if cut == "rows" else 1 for shape in shapes]
    return [([index], grain) for index, grain in enumerate(grains)]


def _cut_all(
    numels: Sequence[int], units: Iterable[tuple[list[int], int]], world_size: int, stage: int
) -> Iterator[tuple[int, int, int, int, int]]:
    """(at, numel, tensor, start, rank) of every stretch, from left to right."""
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
    """The same stretches without the cuts: (at, numel, tensor)."""
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


def _whole(size: float) -> float:
    """8-bit Adam's bytes may be a fraction, all others are whole."""
    return int(size) if size == int(size) else size


def _check(
    world_size: int, stage: int, precision: str, optimizer: str, cut: str, alignment: int
) -> None:
    if world_size < 1 or alignment < 1:
        raise ValueError(f"world_size={world_size}, alignment={alignment}: both at least 1")
    for what, value, known in (
        ("stage", stage, (0, 1, 2, 3)),
        ("precision", precision, tuple(PRECISION_BYTES)),
        ("optimizer", optimizer, tuple(STATE_BYTES)),
        ("cut", cut, CUTS),
    ):
        if value not in known:
            raise ValueError(f"{what}={value!r}: one of {', '.join(map(str, known))}")
