import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, combinations
from typing import Any

import numpy as np

from autograder.exercise import Case, questions
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab04_zero.zero_bytes import papers_table

DRAWN, OFFLOADED = "other sizes and ranks", "other sizes and ranks, with offload"
CASES = (papers_table(10**12, "1T"), questions(DRAWN, weight=2), questions(OFFLOADED))
BOUNDARIES = {
    "divides": "the paper's table, 7.5B",
    "does not divide": "10B with offload on 7 ranks",
    "one rank": "the paper's table, 7.5B",
    "more ranks than elements": "not tested: a share is not rounded",
}
Sizes = dict[str, float]
SHARDED_FROM: Sizes = {"parameters": 3, "gradients": 2, "optimizer": 1}


def right(
    parameters: int,
    n: int,
    stage: int,
    offload: bool = False,
    k: int = 12,
    first: Sizes = SHARDED_FROM,
    rounded: Callable[[float], float] = float,
) -> Sizes:
    """Rajbhandari et al. 2020, section 5; offload as in ZeRO-Offload, Ren et al. 2021."""
    sizes: Sizes = {"host": 0}
    for name, each in (("parameters", 2), ("gradients", 2), ("optimizer", k)):
        sizes[name] = each * (rounded(parameters / n) if stage >= first[name] else parameters)
    if offload:
        sizes["host"] = sizes["gradients"] + sizes["optimizer"]
        sizes["gradients"] = sizes["optimizer"] = 0
    return sizes


def with_parameters_on_the_host(*question: Any) -> Sizes:
    sizes = right(*question)
    if question[3:] == (True,):
        sizes |= {"host": sizes["host"] + sizes["parameters"], "parameters": 0}
    return sizes


def sharding(start: int) -> Iterator[tuple[str, Any]]:
    """(names, answers) of each subset of the three, sharded from stage ``start`` on."""
    for names in chain.from_iterable(combinations(SHARDED_FROM, size) for size in (1, 2, 3)):
        first = SHARDED_FROM | dict.fromkeys(names, start)
        yield " and the ".join(names), partial(right, first=first)


MISTAKES = {
    "counts GB as GiB: a GB is 10⁹ bytes, a GiB is 2³⁰": (
        lambda *q: {name: 2**30 / 1e9 * size for name, size in right(*q).items()}
    ),
    "counts the wrong optimizer states: K is 4 + 4 + 4 = 12 bytes, an fp32 master of the "
    "parameters and Adam's two states": tuple(partial(right, k=k) for k in (8, 4, 16)),
    "misplaces what is offloaded: gradients and optimizer states are on the host only, and the "
    "parameters stay on the device": (
        lambda p, n, stage, offload=False: right(p, n, stage),
        lambda p, n, *how: right(p, n, *how) | {"gradients": 2 * p / n, "host": 12 * p / n},
        lambda p, n, *how: right(p, n, how[0]) | {"host": right(p, n, *how)["host"]},
        with_parameters_on_the_host,
    ),
    "rounds a rank's share: it is Ψ/N, not rounded": tuple(
        partial(right, rounded=way) for way in (math.floor, math.ceil, round)
    ),
    **{f"divides what a stage does not shard: the {names}": f for names, f in sharding(0)},
    **{f"does not divide what a stage shards: the {names}": f for names, f in sharding(9)},
    "divides by 8, whatever N is: divide by world_size": lambda p, n, *how: right(p, 8, *how),
}
EQUIVALENT_ANSWERS = (EquivalentAnswer("stage >= 3", "stage == 3", "there are only stages 0 to 3"),)


def draw(case: Case, rng: np.random.Generator) -> list[tuple[int, int, int, bool]]:
    offload = case.name == OFFLOADED
    sizes = [(int(rng.integers(10**6, 10**12)), int(rng.integers(3, 2000))) for _ in range(20)]
    stages = (2, 3) if offload else (0, 1, 2, 3)
    return [(*size, stage, offload) for size in sizes for stage in stages]
