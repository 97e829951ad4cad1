import numpy as np

from autograder.exercise import Case, questions
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab08_tensor_parallel.hidden import shared

CASES = (
    questions("other sizes and ranks", weight=2),
    questions("two ranks, bf16 by default", (7, 5, 8, 2, 4), (7, 5, 8, 2)),
)
BOUNDARIES = shared.BOUNDARIES | {
    "divides": "GPT-3's width, bf16 and fp32",
    "one rank": "on 4 ranks, on 16 and on one",
}


def right(batch: int, tokens: int, width: int, tp_size: int, element_bytes: int = 2) -> int:
    """Narayanan et al., arXiv 2104.04473, section 3.2: 8 bsh (t-1)/t elements."""
    return twice_all(batch, tokens, width, tp_size, element_bytes) * (tp_size - 1) // tp_size


def twice_all(batch: int, tokens: int, width: int, tp_size: int, element_bytes: int = 2) -> int:
    """Four all-reduces, each as if a rank sent its whole tensor twice."""
    return 8 * batch * tokens * width * element_bytes


MISTAKES = {
    "counts 2 bytes per element: use element_bytes": lambda *q: right(*q[:4]),
    "is half the right answer: a layer has two all-reduces in forward and two in backward, and a "
    "rank sends 2(N - 1)/N of a tensor in each": lambda *q: right(*q) / 2,
    "forgets (N - 1)/N: a ring sends 2(N - 1)/N of a tensor, not all of it twice": twice_all,
    "rounds 2(N - 1)/N to a whole number: multiply before you divide": (
        lambda *q: twice_all(*q) // 2 * (2 * (q[3] - 1) // q[3])
    ),
    "counts elements: return bytes": lambda *q: right(*q[:4]) / 2,
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "4 * 2 * (tp_size - 1) / tp_size * tensor_bytes",
        "8 * (tensor_bytes - tensor_bytes // tp_size)",
        "N divides the width, so it is a whole number",
    ),
)


def draw(case: Case, rng: np.random.Generator) -> list[tuple[int, int, int, int, int]]:
    """Widths that divide by the ranks, so that answers are whole bytes."""
    drawn = []
    for _ in range(24):
        tp_size = int(rng.integers(3, 17))
        batch, tokens = int(rng.integers(3, 30)), int(rng.integers(100, 5000))
        width = tp_size * int(rng.integers(50, 1000))
        drawn.append((batch, tokens, width, tp_size, int(rng.choice([2, 4]))))
    return drawn
