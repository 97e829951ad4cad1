from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from autograder.exercise import Case, questions
from autograder.exercise.hidden import EquivalentAnswer

Machine = dict[str, float]
Times = dict[str, float]
ONE, SEVERAL = "other products and machines", "other products, machines and ranks"
CASES = (questions(ONE), questions(SEVERAL, weight=2))
BOUNDARIES = {
    "divides": "8 ranks: a large all-reduce, a small one",
    "does not divide": "not tested: the task says that the ranks divide the inner dimension",
    "one rank": "one device: many rows, few rows",
    "more ranks than elements": "not tested, as above",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "8 * chunk_bytes / machine", "chunk_bytes / (machine", "TODO"
    ),
)[:0]


def product_s(
    rows: int,
    inner: float,
    columns: int,
    element_bytes: int,
    machine: Machine,
    *,
    flops: float = 2,
    result: float = 1,
    limit: Callable[..., float] = max,
) -> float:
    """Williams et al. 2009: the slower of arithmetic and memory, both at the same time."""
    elements = rows * inner + inner * columns + result * rows * columns
    return limit(
        flops * rows * inner * columns / machine["flops_per_s"],
        elements * element_bytes / machine["memory_bytes_per_s"],
    )
