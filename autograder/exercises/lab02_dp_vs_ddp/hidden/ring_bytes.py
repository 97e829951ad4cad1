from autograder.exercise.hidden import EqualAnswer
from autograder.exercises.lab02_dp_vs_ddp.hidden import pairs

CASES, BOUNDARIES, draw, right = pairs.CASES, pairs.BOUNDARIES, pairs.draw, pairs.ring_pairs
EQUAL_ANSWERS = (
    EqualAnswer("(each, each)", "[each, each]", "lists will do for tuples"),
    EqualAnswer(" / world_size", " // world_size", "the task says that N divides the bytes"),
)
MISTAKES = {
    "forgets (N - 1) / N: a rank never sends its own chunk to itself": (
        lambda psi, n: [(2 * psi, 2 * psi)] * n
    ),
    "counts one half of the ring: a reduce-scatter and an all-gather": (
        lambda psi, n: right(psi / 2, n)
    ),
    "adds both directions up: a pair keeps sent and received apart": (
        lambda psi, n: right(2 * psi, n)
    ),
    "counts what all ranks send together: a pair is of one rank": lambda psi, n: right(n * psi, n),
    "counts whole tensors: a ring sends chunks of 1/N": lambda psi, n: right(n * psi / 2, n),
    "is that of a hub: in a ring every rank has the same load": pairs.hub_pairs,
}
