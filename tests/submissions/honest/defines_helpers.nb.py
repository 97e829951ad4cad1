# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "honest"
# tries = "helpers, a class, a decorator, a lambda, a cache and annotations"
# seen_by = "points"
# state = "graded"
# earns = {chunk_bounds = 2}
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
from __future__ import annotations

import functools
from dataclasses import dataclass

@dataclass(frozen=True)
class Chunk:
    start: int
    stop: int

    def pair(self) -> tuple[int, int]:
        return self.start, self.stop

@functools.lru_cache
def edges(length: int, world_size: int) -> list[int]:
    small, extra = divmod(length, world_size)
    return [(lambda r: r * small + min(r, extra))(r) for r in range(world_size + 1)]

def chunk_bounds(length: int, world_size: int) -> list[tuple[int, int]]:
    found = edges(length, world_size)
    return [Chunk(a, b).pair() for a, b in zip(found, found[1:])]
