"""What decides both formulas: each is a mistake in the other's place."""

import numpy as np

from autograder.exercise import Case, questions
from autograder.exercises.lab02_dp_vs_ddp.hub_bytes import Pairs

CASES = (
    questions("other sizes and ranks"),
    questions("one rank, five ranks", (640, 1), (640, 5)),
)
BOUNDARIES = {
    "divides": "other sizes and ranks",
    "does not divide": "not asked: the task says that N divides the bytes",
    "one rank": "one rank, five ranks",
    "more ranks than elements": "not asked, as above",
}


def hub_pairs(psi: float, n: int) -> Pairs:
    """(sent, received) by rank: rank 0 passes Ψ to and from each of the others."""
    return [((n - 1) * psi, (n - 1) * psi)] + [(psi, psi)] * (n - 1)


def ring_pairs(psi: float, n: int) -> Pairs:
    """Reduce-scatter and all-gather, (N-1)/N·Ψ each (Patarasuk and Yuan 2009)."""
    each = 2 * (n - 1) * psi / n
    return [(each, each)] * n


def draw(case: Case, rng: np.random.Generator) -> list[tuple[int, int]]:
    worlds = [int(n) for n in rng.integers(3, 65, size=20)]
    return [(n * 4 * int(rng.integers(1, 10**6)), n) for n in worlds]
