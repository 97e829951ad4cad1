from autograder.exercise.hidden import EqualAnswer
from autograder.exercises.lab02_dp_vs_ddp.hidden import pairs

CASES, BOUNDARIES, draw, right = pairs.CASES, pairs.BOUNDARIES, pairs.draw, pairs.hub_pairs
EQUAL_ANSWERS = (EqualAnswer("[(hub, hub)]", "[[hub, hub]]", "lists will do for tuples"),)
MISTAKES = {
    "counts N for the hub: it sends nothing to itself, N - 1 others are left": (
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
    "adds both directions up: a pair keeps sent and received apart": (
        lambda psi, n: right(2 * psi, n)
    ),
    "gives the hub one other rank to talk to: there are N - 1": lambda psi, n: [(psi, psi)] * n,
    "gives every rank the hub's load: the others talk to the hub alone": (
        lambda psi, n: [((n - 1) * psi, (n - 1) * psi)] * n
    ),
    "is that of a ring: here everything passes through one rank": pairs.ring_pairs,
}
