from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, combinations
from typing import Any

import numpy as np

from autograder.exercise import Case, questions
from autograder.exercise.hidden import EqualAnswer
from autograder.exercises.lab04_zero.zero_bytes import papers_table

DRAWN, OFFLOADED = "other sizes and ranks", "other sizes and ranks, with offload"
CASES = (papers_table(10**12, "1T"), questions(DRAWN, weight=2), questions(OFFLOADED))
BOUNDARIES = {
    "divides": "the paper's table, 7.5B",
    "does not divide": DRAWN,
    "one rank": "the paper's table, 7.5B",
    "more ranks than elements": "not asked: a share is not rounded",
}
SHARDED_FROM = {"parameters": 3, "gradients": 2, "optimizer": 1}
Sizes = dict[str, float]


def right(
    parameters: int,
    world_size: int,
    stage: int,
    offload: bool,
    k: int = 12,
    sharded_from: Mapping[str, int] = SHARDED_FROM,
    moved: Sequence[str] = ("gradients", "optimizer"),
) -> Sizes:
    """Rajbhandari et al. 2020, section 5; offload as in ZeRO-Offload, Ren et al. 2021."""
    sizes: Sizes = {}
    for name, each in (("parameters", 2), ("gradients", 2), ("optimizer", k)):
        sizes[name] = each * parameters / (world_size if stage >= sharded_from[name] else 1)
    moved = moved if offload else ()
    return sizes | dict.fromkeys(moved, 0.0) | {"host": sum(sizes[name] for name in moved)}


def times(factor: float, *question: Any) -> Sizes:
    return {name: factor * size for name, size in right(*question).items()}


def sharding(start: int) -> Iterator[tuple[str, Any]]:
    """Some of the three, and answers where these are sharded from that stage on."""
    for names in chain.from_iterable(combinations(SHARDED_FROM, size) for size in (1, 2, 3)):
        instead = SHARDED_FROM | dict.fromkeys(names, start)
        yield " and the ".join(names), partial(right, sharded_from=instead)


MISTAKES = {
    "counts GB as GiB: a GB has 10⁹ bytes, 2³⁰ are a GiB": partial(times, 2**30 / 1e9),
    "answers in GB: the answer is in bytes": (partial(times, 1e-9), partial(times, 2.0**-30)),
    "forgets the fp32 master of the parameters: K is 4 + 4 + 4 = 12 bytes": partial(right, k=8),
    "counts one of Adam's two states: K is 4 + 4 + 4 = 12 bytes": partial(right, k=4),
    "counts a gradient in fp32 as well: K is 4 + 4 + 4 = 12 bytes": partial(right, k=16),
    "leaves the gradients on the device: with offload they lie on the host": (
        partial(right, moved=["optimizer"])
    ),
    "counts the host's bytes of all ranks: the answer is for one rank": (
        lambda p, n, *how: right(p, n, *how) | {"host": n * right(p, n, *how)["host"]}
    ),
    **{f"divides the {names} at a stage that does not shard this": f for names, f in sharding(0)},
    **{f"does not divide the {names} at a stage that shards this": f for names, f in sharding(9)},
    "divides by N - 1: all N ranks have a share": lambda p, n, *how: right(p, n - 1, *how),
    "divides by N twice": lambda p, n, *how: right(p, n * n, *how),
    "divides by 8, whatever N is: divide by world_size": lambda p, n, *how: right(p, 8, *how),
}
EQUAL_ANSWERS = (
    EqualAnswer("parameters / world_size", "parameters * (1 / world_size)", "but for a last digit"),
)


def draw(case: Case, rng: np.random.Generator) -> list[tuple[int, int, int, bool]]:
    offload = case.name == OFFLOADED
    sizes = [(int(rng.integers(10**6, 10**12)), int(rng.integers(3, 2000))) for _ in range(20)]
    stages = (2, 3) if offload else (0, 1, 2, 3)
    return [(*size, stage, offload) for size in sizes for stage in stages]
