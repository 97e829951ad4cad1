from itertools import accumulate

import numpy as np

from autograder.exercise import Case, questions
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab03_ring_all_reduce.shared import Bounds

REMAINDER, SHORT = "lengths with a remainder", "fewer elements than ranks"
CASES = (questions(REMAINDER), questions(SHORT))
BOUNDARIES = {
    "divides": "12 elements for 4 ranks",
    "does not divide": "10 elements for 4 ranks",
    "more ranks than elements": "3 elements for 8 ranks",
    "more elements than 32 bits can count": "far more elements than fit in memory",
    "one rank": "not tested: the whole tensor",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "[(starts[r], starts[r + 1]) for r in range(world_size)]",
        "list(zip(starts, starts[1:]))",
        "the same pairs",
    ),
    EquivalentAnswer(
        "range(world_size + 1)", "range(world_size + 2)", "one start that is not used"
    ),
)


def right(length: int, world_size: int) -> Bounds:
    lengths = [length // world_size + (r < length % world_size) for r in range(world_size)]
    stops = list(accumulate(lengths))
    return [(stop - chunk, stop) for stop, chunk in zip(stops, lengths, strict=True)]


def draw(case: Case, rng: np.random.Generator) -> list[tuple[int, int]]:
    drawn = []
    for _ in range(20):
        world_size = int(rng.integers(3, 17))
        if case.name == SHORT:
            length = int(rng.integers(0, world_size))
        else:
            length = world_size * int(rng.integers(1, 1000)) + int(rng.integers(1, world_size))
        drawn.append((length, world_size))
    return drawn
