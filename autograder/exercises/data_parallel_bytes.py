"""hub_bytes and ring_bytes: what each rank sends and receives in a step. Plain functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from autograder.exercise import Attempt, Case, Exercise, Finding, Plain
from autograder.exercise.compare import equal
from autograder.exercise.kept_back import kept_back, never
from autograder.guest.library import answers_of, borrowed

Pairs = list[tuple[float, float]]


def draw_sizes(case: Case, rng: np.random.Generator) -> list[Plain]:
    """[parameter bytes, world_size] each; N divides the bytes, so that answers are whole."""
    if "sizes" in case.params:
        return [case.params["sizes"]]
    return [random_sizes(rng)]


@kept_back(never)
def random_sizes(rng: np.random.Generator) -> Plain:
    worlds = [int(n) for n in rng.integers(3, 65, size=20)]
    return [[n * 4 * int(rng.integers(1, 10**6)), n] for n in worlds]


def drive_bytes(subject: Callable[[int, int], Any], sizes: list[list[int]], case: Case) -> Plain:
    return [as_pairs(answer) for answer in answers_of(subject, sizes)]


def as_pairs(pairs: Any) -> Plain:
    """Lists will do for tuples; anything else stays as it is, for the comparison to name."""
    if not isinstance(pairs, list | tuple):
        return pairs
    return [tuple(pair) if isinstance(pair, list | tuple) else pair for pair in pairs]


def hub_pairs(psi: float, n: int) -> Pairs:
    """(sent, received) by rank: rank 0 passes Ψ to and from each of the others."""
    return [((n - 1) * psi, (n - 1) * psi)] + [(psi, psi)] * (n - 1)


def ring_pairs(psi: float, n: int) -> Pairs:
    """Reduce-scatter and all-gather, (N-1)/N·Ψ each (Patarasuk and Yuan 2009)."""
    each = 2 * (n - 1) * psi / n
    return [(each, each)] * n


def expect_hub_bytes(case: Case, inputs: Any) -> list[Plain]:
    return [[hub_pairs(psi, n) for psi, n in inputs[0]]]


def expect_ring_bytes(case: Case, inputs: Any) -> list[Plain]:
    return [[ring_pairs(psi, n) for psi, n in inputs[0]]]


def is_pairs(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(pair, tuple)
        and len(pair) == 2
        and all(isinstance(part, int | float) and not isinstance(part, bool) for part in pair)
        for pair in value
    )


Wrong = list[tuple[str, Pairs]]  # a mistake, and the pairs that it leads to


@kept_back(lambda case, inputs: inputs[0])
def hub_slips(psi: float, n: int) -> Wrong:
    return list(hub_mistakes(psi, n))


@kept_back(lambda case, inputs: inputs[0])
def ring_slips(psi: float, n: int) -> Wrong:
    return list(ring_mistakes(psi, n))


def hub_mistakes(psi: float, n: int) -> Iterator[tuple[str, Pairs]]:
    rest = n - 1
    others = [(psi, psi)] * rest
    yield (
        "counts N for the hub: it sends nothing to itself, N - 1 others are left",
        [(n * psi, n * psi), *others],
    )
    yield (
        "forgets that the hub sends, too: its weights go out before gradients come in",
        [(0, rest * psi), *[(psi, 0)] * rest],
    )
    yield (
        "forgets that the hub sends, too: its weights go out before gradients come in",
        [(0, rest * psi), *others],
    )
    yield (
        "counts only what the hub sends: the gradients come back to it",
        [(rest * psi, 0), *[(0, psi)] * rest],
    )
    yield (
        "counts only what the hub sends: the gradients come back to it",
        [(rest * psi, 0), *others],
    )
    yield (
        "adds both directions up: a pair keeps sent and received apart",
        [(2 * rest * psi, 2 * rest * psi), *[(2 * psi, 2 * psi)] * rest],
    )
    yield "gives the hub one other rank to talk to: there are N - 1", [(psi, psi)] * n
    yield (
        "gives every rank the hub's load: the others talk to the hub alone",
        [(rest * psi, rest * psi)] * n,
    )
    yield "is that of a ring: here everything passes through one rank", ring_pairs(psi, n)


def ring_mistakes(psi: float, n: int) -> Iterator[tuple[str, Pairs]]:
    for name, each in (
        ("forgets (N - 1) / N: a rank never sends its own chunk to itself", 2 * psi),
        ("counts one half of the ring: a reduce-scatter and an all-gather", (n - 1) * psi / n),
        ("adds both directions up: a pair keeps sent and received apart", 4 * (n - 1) * psi / n),
        ("counts what all ranks send together: a pair is of one rank", 2 * (n - 1) * psi),
        ("counts whole tensors: a ring sends chunks of 1/N", (n - 1) * psi),
    ):
        yield name, [(each, each)] * n
    yield "is that of a hub: in a ring every rank has the same load", hub_pairs(psi, n)


def naming(
    function: str, mistakes: Callable[[float, int], Wrong]
) -> Callable[[Attempt], Finding | None]:
    """Names the first answer that is a list of pairs but not the right one."""

    def wrong_formula(attempt: Attempt) -> Finding | None:
        if attempt.error is not None:
            return None
        sizes, wanted, got = attempt.inputs[0], attempt.expected[0], attempt.outputs[0]
        for (psi, n), right, pairs in zip(sizes, wanted, got, strict=True):
            if equal(right, pairs):
                continue
            name = name_wrong_pairs(pairs, psi, n, mistakes)
            if name:
                call = f"{function}({psi}, {n})"
                return Finding(call, name, first_difference(pairs, right), anyone=function)
        return None

    return wrong_formula


def first_difference(pairs: Any, right: Pairs) -> str:
    if not is_pairs(pairs) or len(pairs) != len(right):
        return f"it is {pairs}"
    rank = next(r for r, pair in enumerate(pairs) if not equal(right[r], pair))
    got, wanted = (" and ".join(f"{part:,.0f}" for part in one[rank]) for one in (pairs, right))
    return f"rank {rank}: {got}, expected {wanted}"


def name_wrong_pairs(
    pairs: Any, psi: float, n: int, mistakes: Callable[[float, int], Wrong]
) -> str:
    if not is_pairs(pairs):
        return "should return a list with a pair (sent, received) for each rank"
    if len(pairs) != n:
        return "should return one pair for each rank: world_size of them"
    return next((name for name, wrong in mistakes(psi, n) if equal(wrong, pairs)), "")


CASES = (
    Case("1,000,000 bytes, 4 ranks", 1, {"sizes": [[1_000_000, 4]]}),
    Case("600 bytes, 3 ranks", 1, {"sizes": [[600, 3]]}),
    Case("other sizes and ranks", 1, {}, hidden=True),
    Case("one rank, five ranks", 1, {"sizes": [[640, 1], [640, 5]]}, hidden=True),
)

HUB_BYTES = Exercise(
    name="dp_vs_ddp.hub_bytes",
    points=2,
    cases=CASES,
    draw=draw_sizes,
    drive=drive_bytes,
    expect=expect_hub_bytes,
    tolerance=1e-9,
    allows=frozenset(),
    diagnoses=(borrowed, naming("hub_bytes", hub_slips)),
)

RING_BYTES = Exercise(
    name="dp_vs_ddp.ring_bytes",
    points=2,
    cases=CASES,
    draw=draw_sizes,
    drive=drive_bytes,
    expect=expect_ring_bytes,
    tolerance=1e-9,
    allows=frozenset(),
    diagnoses=(borrowed, naming("ring_bytes", ring_slips)),
)
