from collections.abc import Callable
from typing import Any

import numpy as np

from autograder.exercise import Case, questions
from autograder.exercise.hidden import EqualAnswer

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


def within(psi: float, s: int, r: int, bytes_each: int = 2, reshard: bool = True) -> float:
    """Rajbhandari et al. 2020, section 7: 3Ψ in all, for (S - 1)/S of what a rank exchanges."""
    return (3 if reshard else 2) * (s - 1) / s * psi * bytes_each


def across(psi: float, s: int, r: int, bytes_each: int = 2, reshard: bool = True) -> float:
    """Zhang et al. 2022 (MiCS, arXiv 2205.00119), section 3.4: an all-reduce of 1/S of Ψ."""
    return 2 * (r - 1) / r * psi * bytes_each / s


def right(*question: Any) -> Sent:
    return {"within": within(*question), "across": across(*question)}


def with_(key: str, formula: Callable[..., float]) -> Callable[..., Sent]:
    return lambda *q: right(*q) | {key: formula(*q)}


def times(factor: float) -> Callable[..., Sent]:
    return lambda *q: {key: factor * sent for key, sent in right(*q).items()}


def forgets(*which: str) -> Callable[..., Sent]:
    """(n − 1)/n"""

    def wrong(*q: Any) -> Sent:
        _, s, r, *_ = q
        part = {"within": (s - 1) / s, "across": (r - 1) / r}
        return right(*q) | {key: right(*q)[key] / part[key] for key in which}

    return wrong


MISTAKES = {
    "all-reduces the whole gradient across groups: a rank has only its shard, 1/S of it": (
        with_("across", lambda psi, s, *more: s * across(psi, s, *more))
    ),
    "forgets the second all-gather: after forward the parameters are freed, and backward gathers "
    "them again": (
        with_("within", lambda psi, s, r, e=2, reshard=True: within(psi, s, r, e, False)),
    ),
    "counts two all-gathers where the parameters stay whole: then backward needs none": (
        with_("within", lambda psi, s, r, e=2, reshard=True: within(psi, s, r, e, True)),
    ),
    "swaps shards and replicas: a shard group has S ranks, a replica group has R": (
        lambda psi, s, r, *more: right(psi, r, s, *more)
    ),
    "swaps within and across": (
        lambda *q: {"within": right(*q)["across"], "across": right(*q)["within"]}
    ),
    "counts a reduce-scatter across groups: every rank of a replica group needs the sum, which is "
    "an all-reduce, twice as much": with_("across", lambda *q: across(*q) / 2),
    "counts an all-reduce of the gradients within the group: a rank needs only its shard of them": (
        with_("within", lambda *q: within(*q) * 4 / 3 if len(q) < 5 or q[4] else within(*q) * 3 / 2)
    ),
    "forgets the reduce-scatter of the gradients": (
        with_("within", lambda *q: within(*q) * 2 / 3 if len(q) < 5 or q[4] else within(*q) / 2)
    ),
    "gathers across groups, too: each group has all of the model": (
        lambda psi, s, r, *more: {
            "within": within(psi, s, r, *more),
            "across": 3 * (r - 1) / r * within(psi, 2, 1, *more) * 2 / 3 / s,
        }
    ),
    "shards over all ranks: a rank's shard is 1/S of the model, not 1/(R·S)": (
        lambda psi, s, r, *more: {
            "within": within(psi, s * r, 1, *more),
            "across": across(psi, s * r, r, *more),
        },
        with_("across", lambda psi, s, r, *more: across(psi, s * r, r, *more)),
        with_("within", lambda psi, s, r, *more: within(psi, s * r, 1, *more)),
    ),
    "forgets (n - 1)/n: a ring over n ranks sends (n - 1)/n of a tensor, not all of it": (
        forgets("within", "across"),
        forgets("within"),
        forgets("across"),
    ),
    "divides what it sends within the group by S: a rank sends (S - 1)/S of the whole tensor": (
        with_("within", lambda psi, s, *more: within(psi, s, *more) / s)
    ),
    "counts what all ranks send: return what one rank sends": (
        lambda psi, s, r, *more: {
            key: s * r * sent for key, sent in right(psi, s, r, *more).items()
        }
    ),
    "counts elements: return bytes": lambda *q: right(*q[:3], 1, *q[4:]),
    "counts 2 bytes per element: use element_bytes": lambda *q: right(*q[:3], 2, *q[4:]),
    "answers in GB: return bytes": times(1e-9),
}
EQUAL_ANSWERS = (
    EqualAnswer(
        "tensors * (shards - 1) / shards * model_bytes",
        "tensors * (model_bytes - model_bytes / shards)",
        "all of a tensor but the rank's own shard",
    ),
)


def draw(case: Case, rng: np.random.Generator) -> list[tuple[int, int, int, int, bool]]:
    drawn = []
    for _ in range(24):
        psi, shards, replicas = (int(rng.integers(3, most)) for most in (10**11, 65, 65))
        drawn.append((psi, shards, replicas, int(rng.choice([2, 4])), case.name == DRAWN))
    return drawn
