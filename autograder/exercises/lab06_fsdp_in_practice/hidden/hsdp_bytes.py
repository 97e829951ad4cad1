from collections.abc import Callable
from typing import Any

import numpy as np

from autograder.exercise import Case, questions
from autograder.exercise.hidden import EquivalentAnswer

DRAWN, KEPT_WHOLE = "other sizes and meshes", "other sizes and meshes, parameters stay whole"
CASES = (questions(DRAWN), questions(KEPT_WHOLE))
BOUNDARIES = {
    "divides": "7B on 64 ranks",
    "does not divide": "fp32, and parameters that stay whole",
    "one rank": "fp32, and parameters that stay whole",
    "one shard group": "7B on 64 ranks",
    "one rank in each shard group": "7B on 64 ranks",
    "more ranks than elements": "not tested: a shard is not rounded",
}
Sent = dict[str, float]


def within(psi: float, r: int, s: int, bytes_each: int = 2, reshard: bool = True) -> float:
    """Rajbhandari et al. 2020, section 7: 3Ψ in all, for (S - 1)/S of what a rank exchanges."""
    return (s - 1) / s * exchanges(reshard) * psi * bytes_each


def exchanges(reshard: bool = True) -> int:
    """All-gathers and reduce-scatters within a group."""
    return 3 if reshard else 2


def across(psi: float, r: int, s: int, bytes_each: int = 2, reshard: bool = True) -> float:
    """Zhang et al. 2022 (MiCS, arXiv 2205.00119): an all-reduce of 1/S of Ψ."""
    return 2 * (r - 1) / r * psi * bytes_each / s


def right(*question: Any) -> Sent:
    return {"within": within(*question), "across": across(*question)}


def with_(**formulas: Callable[..., float]) -> Callable[..., Sent]:
    return lambda *q: right(*q) | {key: formula(*q) for key, formula in formulas.items()}


def more_exchanges(more: int) -> Callable[..., float]:
    def wrong(psi: float, r: int, s: int, e: int = 2, reshard: bool = True) -> float:
        count = exchanges(reshard)
        return within(psi, r, s, e, reshard) * (count + more) / count

    return wrong


def whole_within(psi: float, r: int, s: int, e: int = 2, reshard: bool = True) -> float:
    return exchanges(reshard) * psi * e


def whole_across(psi: float, r: int, s: int, e: int = 2, reshard: bool = True) -> float:
    return 2 * psi * e / s


def not_sharded(psi: float, r: int, s: int, e: int = 2, reshard: bool = True) -> float:
    return s * across(psi, r, s, e)


MISCOUNTED = (
    lambda psi, r, s, e=2, reshard=True: within(psi, r, s, e, False),
    lambda psi, r, s, e=2, reshard=True: within(psi, r, s, e, True),
    more_exchanges(1),
    more_exchanges(-1),
)
MISTAKES = {
    "all-reduces the whole gradient across groups: a rank has only its shard, 1/S of it": (
        with_(across=not_sharded)
    ),
    "counts the wrong number of exchanges within the group: there is an all-gather for forward, "
    "another for backward if the parameters were freed, and one reduce-scatter": (
        tuple(with_(within=wrong) for wrong in MISCOUNTED)
    ),
    "all-reduces the whole gradient across groups, of which a rank has only its shard, 1/S; and "
    "counts the wrong number of exchanges within the group": (
        tuple(with_(within=wrong, across=not_sharded) for wrong in MISCOUNTED)
    ),
    "swaps shards and replicas: a shard group has S ranks, a replica group has R": (
        lambda psi, r, s, *more: right(psi, s, r, *more)
    ),
    "counts a reduce-scatter across groups: every rank of a replica group needs the sum, which is "
    "an all-reduce, twice as much": with_(across=lambda *q: across(*q) / 2),
    "gathers over all R·S ranks: a shard group has S": (
        with_(within=lambda psi, r, s, *more: within(psi, 1, r * s, *more))
    ),
    "forgets (n - 1)/n: a ring over n ranks sends (n - 1)/n of a tensor, not all of it": (
        with_(within=whole_within, across=whole_across),
        with_(within=whole_within),
        with_(across=whole_across),
    ),
    "counts what all ranks send: return what one rank sends": (
        lambda psi, r, s, *more: {
            key: r * s * sent for key, sent in right(psi, r, s, *more).items()
        },
        with_(across=lambda psi, r, *more: r * across(psi, r, *more)),
        with_(within=lambda psi, r, s, *more: s * within(psi, r, s, *more)),
    ),
    "counts elements, or 2 bytes for each: use element_bytes": (
        lambda *q: right(*q[:3], 1, *q[4:]),
        lambda *q: right(*q[:3], 2, *q[4:]),
    ),
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "tensors * (shards - 1) / shards * model_bytes",
        "tensors * (model_bytes - model_bytes / shards)",
        "all of a tensor but the rank's own shard",
    ),
)


def draw(case: Case, rng: np.random.Generator) -> list[tuple[int, int, int, int, bool]]:
    drawn = []
    for _ in range(24):
        psi, replicas, shards = (int(rng.integers(3, most)) for most in (10**11, 65, 65))
        drawn.append((psi, replicas, shards, int(rng.choice([2, 4])), case.name == DRAWN))
    return drawn
