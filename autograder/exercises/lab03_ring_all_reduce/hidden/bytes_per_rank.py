import numpy as np

from autograder.exercise import Case, questions

CASES = (
    questions("other sizes and ranks"),
    questions("one rank, two ranks", (640, 4, 1), (640, 8, 2)),
)
BOUNDARIES = {
    "divides": "2²⁰ bfloat16 on 8 ranks",
    "does not divide": "not tested: the formula gives whole bytes where N divides the length",
    "one rank": "1,000 float32 on 4 ranks and on one",
    "more ranks than elements": "not tested, as above",
}


def right(length: int, element_bytes: int, world_size: int) -> int:
    """Patarasuk and Yuan 2009: 2(N - 1)/N of the tensor."""
    return 2 * (world_size - 1) * length * element_bytes // world_size


MISTAKES = {
    "forgets (N - 1) / N: a rank never sends its own result to itself": (
        lambda length, size, n: 2 * length * size
    ),
    "counts one half of the ring: there is a reduce-scatter and an all-gather": (
        lambda length, size, n: right(length, size, n) / 2
    ),
}


def draw(case: Case, rng: np.random.Generator) -> list[tuple[int, int, int]]:
    drawn = []
    for _ in range(20):
        world_size = int(rng.integers(3, 65))
        length = world_size * int(rng.integers(1, 10**9))
        drawn.append((length, int(rng.choice([1, 2, 4, 8])), world_size))
    return drawn
