import numpy as np

from autograder.exercise import Case, questions
from autograder.exercise.hidden import EquivalentAnswer

PLAIN, CHUNKS = "drawn sizes", "drawn sizes and chunks"
ONE_CHUNK = "one chunk: m > p, one device, m < p"
CASES = (questions(PLAIN), questions(CHUNKS))
BOUNDARIES = {
    "divides": ONE_CHUNK,
    "does not divide": ONE_CHUNK,
    "one rank": ONE_CHUNK,
    "more ranks than elements": ONE_CHUNK,
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "idle = devices - 1\n    return idle / (chunks * micro_batches + idle)",
        "idle = (devices - 1) / chunks\n    return idle / (micro_batches + idle)",
        "in units of a device's F + B, not of a chunk's",
    ),
)


def right(p: int, m: int, v: int = 1) -> float:
    """Narayanan et al., arXiv 2104.04473, section 2.2, as a fraction of the whole step."""
    return (p - 1) / (v * m + p - 1)


MISTAKES = {
    "divides by the ideal time: the whole step is the ideal time plus the bubble": (
        lambda p, m, v=1: (p - 1) / (v * m)
    ),
    "forgets the chunks: a pipeline of v chunks fills and drains v times as fast": (
        lambda p, m, v=1: right(p, m)
    ),
    "counts p slots to fill the pipeline: the last device waits for p - 1 others": (
        lambda p, m, v=1: p / (v * m + p),
        lambda p, m, v=1: p / (v * m + p - 1),
    ),
}


def draw(case: Case, rng: np.random.Generator) -> list[tuple[int, ...]]:
    drawn: list[tuple[int, ...]] = []
    for _ in range(20):
        devices, rounds = int(rng.integers(3, 33)), int(rng.integers(1, 9))
        sizes = (devices, devices * rounds)
        drawn.append((*sizes, int(rng.integers(2, 7))) if case.name == CHUNKS else sizes)
    return drawn
