"""Passes of ranks through measured blocks: one label may be measured several times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from shardlab.run import MeasuredBlock


def numbered(blocks: Iterable[MeasuredBlock]) -> Iterator[tuple[MeasuredBlock, int]]:
    """Each block, and how many passes its rank made through blocks of this label before it."""
    before: dict[tuple[int, str], int] = defaultdict(int)
    for block in sorted(blocks, key=lambda each: each.start_s):
        yield block, before[block.rank, block.label]
        before[block.rank, block.label] += 1


def spans(blocks: Iterable[MeasuredBlock]) -> dict[tuple[str, int], tuple[float, float]]:
    """{(label, number of the pass): from its first rank's start to its last rank's end, in s}"""
    found: dict[tuple[str, int], tuple[float, float]] = {}
    for block, which in numbered(blocks):
        start_s, end_s = found.get((block.label, which), (block.start_s, block.end_s))
        span = min(start_s, block.start_s), max(end_s, block.end_s)
        found[block.label, which] = span
    return found
