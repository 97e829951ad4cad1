from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import numpy as np

from autograder.exercise import Case, questions
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab04_zero.shared import Bounds

DRAWN, FEW = "other sizes and ranks", "more ranks than elements"
DIVIDES, VISIBLE = (
    "parameters of 3, 4 and 3 on 4 ranks, 5, 1",
    "parameters of 100 and 7 on 8 ranks, 1 on 3",
)
CASES = (questions(FEW, ([2, 1], 5)), questions(DRAWN))
BOUNDARIES = {
    "divides": DIVIDES,
    "does not divide": VISIBLE,
    "one rank": DIVIDES,
    "more ranks than elements": VISIBLE,
}
ROUNDED_UP = "-(-sum(sizes) // world_size)", "(sum(sizes) + world_size - 1) // world_size"
EQUIVALENT_ANSWERS = (EquivalentAnswer(*ROUNDED_UP, "another way to round up"),)

Sizes = Sequence[int]


def right(sizes: Sizes, world_size: int) -> Bounds:
    return of_length(-(-sum(sizes) // world_size), world_size)


def of_length(length: int, world_size: int) -> Bounds:
    return [(rank * length, (rank + 1) * length) for rank in range(world_size)]


def between(edges: Sequence[int]) -> Bounds:
    return list(pairwise(edges))


def changed(change: Callable[[int, int, int], tuple[int, int]]) -> Callable[[Sizes, int], Bounds]:
    """The right answer with each (start, stop) changed; the third argument is Ψ."""
    return lambda sizes, n: [change(*pair, sum(sizes)) for pair in right(sizes, n)]


def as_even_as_possible(elements: int, n: int) -> list[int]:
    """Edges: the first ranks get one more."""
    return [0, *accumulate(elements // n + (rank < elements % n) for rank in range(n))]


def by_layer(edges: Sequence[int], sizes: Sizes) -> Bounds:
    """``edges``: of each rank's layers."""
    starts = [0, *accumulate(sizes)]
    return between([starts[min(edge, len(sizes))] for edge in edges])


MISTAKES = {
    "rounds wrongly: a slice has Ψ/N elements, rounded up only where N does not divide Ψ": (
        lambda sizes, n: of_length(sum(sizes) // n, n),
        lambda sizes, n: of_length(sum(sizes) // n + 1, n),
        lambda sizes, n: of_length(round(sum(sizes) / n), n),
    ),
    "pads each parameter by itself: concatenate them all, then pad once": (
        lambda sizes, n: of_length(sum(-(-size // n) for size in sizes), n)
    ),
    "makes unequal slices: collectives need the same length on every rank, so pad": (
        lambda sizes, n: between([*(rank * (sum(sizes) // n) for rank in range(n)), sum(sizes)]),
        changed(lambda start, stop, psi: (min(start, psi), min(stop, psi))),
        changed(lambda start, stop, psi: (start, min(stop, psi))),
        lambda sizes, n: between(as_even_as_possible(sum(sizes), n)),
        lambda sizes, n: between([rank * sum(sizes) // n for rank in range(n + 1)]),
        lambda sizes, n: between([round(rank * sum(sizes) / n) for rank in range(n + 1)]),
    ),
    "splits by layer: a slice may begin and end in the middle of a parameter": (
        lambda sizes, n: by_layer([rank * -(-len(sizes) // n) for rank in range(n + 1)], sizes),
        lambda sizes, n: by_layer(as_even_as_possible(len(sizes), n), sizes),
        lambda sizes, n: by_layer([rank * (len(sizes) // n) for rank in range(n + 1)], sizes),
    ),
    "returns no (start, stop): a rank's slice is flat[start:stop]": (
        changed(lambda start, stop, _: (start, stop - 1)),
        changed(lambda start, stop, _: (start, stop - start)),
    ),
}


def draw(case: Case, rng: np.random.Generator) -> list[tuple[list[int], int]]:
    drawn: list[tuple[list[int], int]] = []
    while len(drawn) < 20:
        world_size = int(rng.integers(3, 33))
        sizes = [int(size) for size in rng.integers(1, 2000, size=int(rng.integers(3, 9)))]
        if len(drawn) % 4 == 0:  # N divides
            sizes[-1] += -sum(sizes) % world_size
        drawn.append((sizes, world_size))
    return drawn
