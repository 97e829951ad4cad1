"""A layout as plain data, and a function that merges the ranks' reports into one.

All tensors of a model are concatenated into one flat buffer. A rank holds segments of it, for
parameters, gradients and optimizer state:

    at       0         8    10        18 20
             |w w w w w w w w|b b|v v v v v v v v|. .|      . padding
    rank 0   |-----------------|
    rank 1                     |---------------------|
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

BUFFERS = ("parameters", "gradients", "optimizer")
EVERY_RANK = -1
PADDING = -1


class Segment(NamedTuple):
    """A contiguous part of the flat buffer on one rank or on every rank."""

    at: int  # first element in the flat buffer
    numel: int
    tensor: int  # index into Layout.tensors; PADDING: no tensor
    start: int  # first element in the flattened tensor
    rank: int  # EVERY_RANK: a copy on each rank
    bytes: float  # on one rank; fractional only for 8-bit Adam, where many elements share a scale


@dataclass(frozen=True)
class Piece:
    """A segment with names: elements [start, stop) of a flattened tensor, on one rank."""

    rank: int
    buffer: str  # one of BUFFERS
    tensor: str  # "": padding
    start: int
    stop: int
    at: int  # first element in the flat buffer
    bytes: float

    @property
    def is_padding(self) -> bool:
        return not self.tensor


@dataclass(frozen=True)
class Layout:
    """Which rank holds what. Made by `flat`, or by `gather` from the reports of ranks.

    world_size: N.   stage: ZeRO stage, or None.
    source: a description of where the layout comes from.
    tensors: (name, elements), in the order of the flat buffer.
    segments: by buffer, ordered by position, then rank. A buffer that no rank holds is empty.
    length: elements of the flat buffer, including padding.
    recipe: the arguments of `flat` if the layout comes from a formula, so that it can be redrawn
        for other stages and world sizes.
    """

    world_size: int
    stage: int | None
    source: str
    tensors: tuple[tuple[str, int], ...]
    segments: dict[str, tuple[Segment, ...]] = field(repr=False)
    length: int
    recipe: dict[str, Any] | None = field(default=None, repr=False, compare=False)

    def pieces(self, buffer: str | None = None, rank: int | None = None) -> list[Piece]:
        """Each slice on each rank, optionally of only one buffer or one rank."""
        found = []
        for name in BUFFERS if buffer is None else [buffer]:
            for part in self.segments[name]:
                holders = range(self.world_size) if part.rank == EVERY_RANK else [part.rank]
                tensor = "" if part.tensor == PADDING else self.tensors[part.tensor][0]
                for holder in holders:
                    if rank is None or holder == rank:
                        stop = part.start + part.numel
                        found.append(
                            Piece(holder, name, tensor, part.start, stop, part.at, part.bytes)
                        )
        return found

    def bytes_by_rank(self, buffer: str | None = None) -> list[float]:
        """[N] bytes that each rank holds, including padding; of one buffer or of all."""
        everywhere: float = 0
        sums: list[float] = [0] * self.world_size
        for name in BUFFERS if buffer is None else [buffer]:
            for part in self.segments[name]:
                if part.rank == EVERY_RANK:
                    everywhere += part.bytes
                else:
                    sums[part.rank] += part.bytes
        return [everywhere + own for own in sums]

    def ranks_of(self, tensor: str, buffer: str) -> list[int]:
        """The ranks that hold any part of a tensor."""
        index = [name for name, _ in self.tensors].index(tensor)
        ranks = {part.rank for part in self.segments[buffer] if part.tensor == index}
        return list(range(self.world_size)) if EVERY_RANK in ranks else sorted(ranks)


def report(
    *,
    rank: int,
    world_size: int,
    stage: int | None,
    source: str,
    tensors: Sequence[tuple[str, int]],
    length: int,
    held: Mapping[str, Iterable[tuple[int, int, int, int, float]]],
) -> dict[str, Any]:
    """One rank's report for `gather`. held: by buffer, (at, numel, tensor, start, bytes)."""
    return {
        "rank": rank,
        "world_size": world_size,
        "stage": stage,
        "source": source,
        "tensors": [list(tensor) for tensor in tensors],
        "length": length,
        "held": {name: sorted(tuple(part) for part in held[name]) for name in BUFFERS},
    }


def gather(outputs: Sequence[Mapping[str, Any]]) -> Layout:
    """The layout of a run whose ranks each returned `of_deepspeed(…)` or `of_fsdp2(…)`.

    Raises ValueError if a rank is missing, or if ranks do not report the same tensors.
    """
    if not outputs or any(not isinstance(out, Mapping) or "held" not in out for out in outputs):
        raise ValueError(
            "gather expects the report of each rank: end fn with "
            "`return shards.of_deepspeed(engine)` and pass run.outputs"
        )
    reports = sorted(outputs, key=lambda out: out["rank"])
    first = reports[0]
    ranks = [report["rank"] for report in reports]
    if ranks != list(range(first["world_size"])):
        raise ValueError(
            f"the layout has {first['world_size']} ranks, but reports are from {ranks}"
        )
    for report in reports[1:]:
        for key in ("stage", "tensors", "length"):
            if report[key] != first[key]:
                raise ValueError(f"ranks 0 and {report['rank']} differ in {key}")
    return Layout(
        world_size=first["world_size"],
        stage=first["stage"],
        source=first["source"],
        tensors=tuple((name, numel) for name, numel in first["tensors"]),
        segments={name: _merge([report["held"][name] for report in reports]) for name in BUFFERS},
        length=first["length"],
    )


def _merge(held: Sequence[Sequence[tuple[int, int, int, int, float]]]) -> tuple[Segment, ...]:
    """Segments of all ranks; a part that all ranks hold becomes one EVERY_RANK segment."""
    ranks_of: dict[tuple[int, int, int, int, float], list[int]] = {}
    for rank, parts in enumerate(held):
        for part in parts:
            ranks_of.setdefault(tuple(part), []).append(rank)  # type: ignore[arg-type]
    merged = []
    for (at, numel, tensor, start, size), ranks in ranks_of.items():
        holders = [EVERY_RANK] if len(ranks) == len(held) > 1 else ranks
        merged += [Segment(at, numel, tensor, start, rank, size) for rank in holders]
    return tuple(sorted(merged, key=lambda part: (part.at, part.rank)))
