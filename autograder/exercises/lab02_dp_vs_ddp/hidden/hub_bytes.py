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


MISTAKES = {
    "counts N for the hub: it sends to the N - 1 others, not to itself": (
        lambda psi, n: [(n * psi, n * psi)] + [(psi, psi)] * (n - 1)
    ),
}
