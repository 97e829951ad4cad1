from collections.abc import Sequence

import numpy as np

from autograder.exercise import Case, questions
from autograder.exercise.hidden import EqualAnswer
from autograder.exercises.lab04_zero.shared import Bounds

DRAWN, FEW = "other sizes and ranks", "more ranks than elements"
CASES = (questions(FEW, ([2, 1], 5)), questions(DRAWN))
BOUNDARIES = {
    "divides": "not tested: an answer without padding would pass",
    "does not divide": DRAWN,
    "one rank": "not tested: all elements",
    "more ranks than elements": FEW,
}
ROUNDED_UP = "-(-sum(sizes) // world_size)", "(sum(sizes) + world_size - 1) // world_size"
EQUAL_ANSWERS = (EqualAnswer(*ROUNDED_UP, "another way to round up"),)


def right(sizes: Sequence[int], world_size: int) -> Bounds:
    length = -(-sum(sizes) // world_size)
    return [(rank * length, (rank + 1) * length) for rank in range(world_size)]


def draw(case: Case, rng: np.random.Generator) -> list[tuple[list[int], int]]:
    drawn: list[tuple[list[int], int]] = []
    while len(drawn) < 20:
        world_size = int(rng.integers(3, 33))
        sizes = [int(size) for size in rng.integers(1, 2000, size=int(rng.integers(3, 9)))]
        if sum(sizes) % world_size:
            drawn.append((sizes, world_size))
    return drawn
