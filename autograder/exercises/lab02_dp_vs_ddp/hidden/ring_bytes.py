from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab02_dp_vs_ddp.hidden import hub_bytes
from autograder.exercises.lab02_dp_vs_ddp.hub_bytes import Pairs

CASES, BOUNDARIES, draw = hub_bytes.CASES, hub_bytes.BOUNDARIES, hub_bytes.draw
EQUIVALENT_ANSWERS = (
    EquivalentAnswer("(each, each)", "[each, each]", "lists are accepted for tuples"),
    EquivalentAnswer(" / world_size", " // world_size", "the task says that N divides the bytes"),
)


def right(psi: float, n: int) -> Pairs:
    """Reduce-scatter and all-gather, (N-1)/N·Ψ each (Patarasuk and Yuan 2009)."""
    each = 2 * (n - 1) * psi / n
    return [(each, each)] * n


MISTAKES = {
    "forgets (N - 1) / N: a rank never sends its own chunk to itself": (
        lambda psi, n: [(2 * psi, 2 * psi)] * n
    ),
    "counts one half of the ring: there is a reduce-scatter and an all-gather": (
        lambda psi, n: right(psi / 2, n)
    ),
}
