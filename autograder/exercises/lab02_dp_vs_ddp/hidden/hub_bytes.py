import numpy as np

from autograder.exercise import Case, questions
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab02_dp_vs_ddp.hub_bytes import Pairs

CASES = (questions("other sizes and ranks"), questions("one rank, five ranks", (640, 1), (640, 5)))
BOUNDARIES = {
    "divides": "1,000,000 bytes, 4 ranks",
    "does not divide": "not tested: the task says that N divides the bytes",
    "one rank": "630 bytes, 3 ranks and one",
    "more ranks than elements": "not tested, as above",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer("[(hub, hub)]", "[[hub, hub]]", "lists are accepted for tuples"),
)


def right(psi: float, n: int) -> Pairs:
    """(sent, received) by rank: rank 0 exchanges Ψ both ways with each of the others."""
    return [((n - 1) * psi, (n - 1) * psi)] + [(psi, psi)] * (n - 1)


def draw(case: Case, rng: np.random.Generator) -> list[tuple[int, int]]:
    worlds = [int(n) for n in rng.integers(3, 65, size=20)]
    return [(n * 4 * int(rng.integers(1, 10**6)), n) for n in worlds]


SINGLE_RANK = "counts bytes for a single rank, which has no other rank to send to"
MISTAKES = {
    SINGLE_RANK: lambda psi, n: [(psi, psi)] if n == 1 else None,
    "counts N for the hub: it sends to the N - 1 others, not to itself": (
        lambda psi, n: [(n * psi, n * psi)] + [(psi, psi)] * (n - 1)
    ),
    "forgets that the hub sends, too: its weights go out before gradients come in": (
        lambda psi, n: [(0, (n - 1) * psi)] + [(psi, 0)] * (n - 1),
        lambda psi, n: [(0, (n - 1) * psi)] + [(psi, psi)] * (n - 1),
    ),
    "counts only what the hub sends: the gradients come back to it": (
        lambda psi, n: [((n - 1) * psi, 0)] + [(0, psi)] * (n - 1),
        lambda psi, n: [((n - 1) * psi, 0)] + [(psi, psi)] * (n - 1),
    ),
    "adds both directions up: a pair lists sent and received separately": (
        lambda psi, n: right(2 * psi, n)
    ),
    "counts one other rank for the hub: there are N - 1": lambda psi, n: [(psi, psi)] * n,
    "gives every rank the hub's load: the others communicate only with the hub": (
        lambda psi, n: [((n - 1) * psi, (n - 1) * psi)] * n
    ),
    "is the formula for a ring: here everything passes through one rank": (
        lambda psi, n: [(2 * (n - 1) * psi / n, 2 * (n - 1) * psi / n)] * n
    ),
}
