from collections.abc import Callable

import numpy as np

from autograder.exercise import Case, questions
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab07_tensor_parallel.hidden import shared

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


def times(factor: float, formula: Callable[..., float] = right) -> Callable[..., float]:
    return lambda *question: factor * formula(*question)


MISTAKES = {
    "counts 2 bytes per element: use element_bytes": lambda *q: right(*q[:4]),
    "counts 4 bytes per element unless told otherwise: element_bytes is 2 by default": (
        lambda *q: right(*q) if len(q) > 4 else 2 * right(*q)
    ),
    "counts one all-reduce: a layer has two in forward and two in backward": times(1 / 4),
    "is half the right answer: a layer has two all-reduces in forward and two in backward, and a "
    "rank sends 2(N - 1)/N of a tensor in each": times(1 / 2),
    "forgets (N - 1)/N: a ring sends 2(N - 1)/N of a tensor, not all of it twice": twice_all,
    "rounds 2(N - 1)/N to a whole number: multiply before you divide": (
        lambda *q: twice_all(*q) // 2 * (2 * (q[3] - 1) // q[3])
    ),
    "counts one tensor per all-reduce: a ring sends 2(N - 1)/N of it": times(1 / 2, twice_all),
    "counts only two tensors: there are four all-reduces": times(1 / 4, twice_all),
    "counts what all ranks send: return what one rank sends": lambda *q: right(*q) * q[3],
    "divides by N: only weights are split, the summed tensors are whole": (
        lambda *q: right(*q) / q[3]
    ),
    "counts elements: return bytes": lambda *q: right(*q[:4]) / 2,
    "forgets the batch: the summed tensors are [batch, tokens, width]": lambda *q: right(*q) / q[0],
    "forgets the tokens: the summed tensors are [batch, tokens, width]": (
        lambda *q: right(*q) / q[1]
    ),
    "counts the MLP's inner width, 4D: the summed tensors are [batch, tokens, width]": times(4),
    "sums the MLP's inner values as well: only its output is summed": times(2.5),
    "is twice the right answer: there are four all-reduces, and a rank sends 2(N - 1)/N of a "
    "tensor [batch, tokens, width] in each": times(2),
    "is in GB: return bytes": times(1e-9),
    "is in GiB: return bytes": times(2**-30),
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
