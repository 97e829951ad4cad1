from typing import Any

import numpy as np

from autograder.exercise import Case, questions
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab08_tensor_parallel.mesh_coords import meshes

CASES = (meshes("5 × 3", (5, 3)), questions("other meshes"))
BOUNDARIES = {
    "divides": "2 × 4 and 3 × 2",
    "does not divide": "not tested: the number of ranks is the product of both sizes",
    "one rank": "an axis of one",
    "more ranks than elements": "not tested: nothing is split",
}
Coords = dict[str, Any]


def right(rank: int, dp_size: int, tp_size: int) -> Coords:
    mesh = np.arange(dp_size * tp_size).reshape(dp_size, tp_size)
    dp_rank, tp_rank = (int(index[0]) for index in np.where(mesh == rank))
    groups = {"dp_group": mesh[:, tp_rank].tolist(), "tp_group": mesh[dp_rank].tolist()}
    return {"dp_rank": dp_rank, "tp_rank": tp_rank, **groups}


def swapped(rank: int, dp_size: int, tp_size: int, *names: str) -> Coords:
    """With the values of the two axes swapped."""
    coords, axes = right(rank, dp_size, tp_size), {"dp": "tp", "tp": "dp"}
    return {f"{a}_{name}": coords[f"{b}_{name}"] for a, b in axes.items() for name in names}


MISTAKES = {
    "separates the ranks of a tensor-parallel group: they communicate most, so neighbors have the "
    "same dp_rank": lambda rank, dp, tp: swapped(rank, tp, dp, "rank", "group"),
    "swaps dp_rank and tp_rank": lambda *q: swapped(*q, "rank"),
    "swaps dp_group and tp_group: a tp_group shares one copy of the model, and a "
    "dp_group has the same share of each copy": lambda *q: swapped(*q, "group"),
    "has coordinates in its groups: list global ranks": (
        lambda rank, dp, tp: {"dp_group": [*range(dp)], "tp_group": [*range(tp)]}
    ),
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "list(range(dp_rank * tp_size, (dp_rank + 1) * tp_size))",
        "range(dp_rank * tp_size, (dp_rank + 1) * tp_size)",
        "a range of ranks is as good as a list",
    ),
)


def draw(case: Case, rng: np.random.Generator) -> list[tuple[int, int, int]]:
    drawn = []
    for _ in range(24):
        dp_size, tp_size = (int(size) for size in rng.choice(range(2, 12), size=2, replace=False))
        drawn.append((int(rng.integers(0, dp_size * tp_size)), dp_size, tp_size))
    return drawn
