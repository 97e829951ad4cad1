from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autograder.exercise import Case, questions
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab16_where_the_time_goes.hidden.shared import mistakes

Machine = dict[str, float]
ONE, SEVERAL = "other products and machines", "other products, machines and ranks"
CASES = (questions(ONE), questions(SEVERAL, weight=2))
BOUNDARIES = {
    "divides": "several ranks: a large all-reduce, a small one",
    "does not divide": "not tested: the task says that the ranks divide inner",
    "one rank": "one device: many rows, few rows, a small inner dimension",
    "more ranks than elements": "not tested, as above",
}
EQUIVALENT_ANSWERS: tuple[EquivalentAnswer, ...] = ()


def two_halves(n: int) -> int:
    """Messages that a rank of a ring sends one after another: reduce-scatter and all-gather."""
    return 2 * (n - 1)


def by_inner(m: int, k: int, c: int, n: int) -> tuple[float, float, float]:
    return m, k / n, c


def right(
    rows: int,
    inner: int,
    columns: int,
    element_bytes: int,
    machine: Machine,
    ranks: int = 1,
    *,
    split: Callable[..., tuple[float, float, float]] = by_inner,
    flops: float = 2,
    moved: tuple[float, float, float] = (1, 1, 1),
    limit: Callable[[float, float], float] = max,
    size: Callable[[int], float] = lambda e: e,
    messages: Callable[[int], float] = two_halves,
    sent: Callable[[int], float] = lambda n: two_halves(n) / n,
    reduced: Callable[..., float] = lambda m, k, c, n: m * c,
    bits: float = 8,
) -> dict[str, float]:
    """Williams et al. 2009; Patarasuk and Yuan 2009. The keywords are what mistakes change.

    moved: how often the two factors and the result are read or written; sent: of a tensor.
    """
    m, k, c = split(rows, inner, columns, ranks)
    elements = sum(a * b for a, b in zip(moved, (m * k, k * c, m * c), strict=True))
    compute_s = flops * m * k * c / machine["flops_per_s"]
    memory_s = elements * size(element_bytes) / machine["memory_bytes_per_s"]
    sent_bytes = sent(ranks) * reduced(rows, inner, columns, ranks) * size(element_bytes)
    latency_s = messages(ranks) * machine["latency_s"]
    return {
        "product_s": limit(compute_s, memory_s),
        "all_reduce_s": latency_s + bits * sent_bytes / machine["link_bits_per_s"],
    }


CHANGES: dict[str, tuple[dict[str, Any], ...]] = {
    "adds the times of arithmetic and of memory: both run at the same time, so the longer one "
    "counts": ({"limit": lambda compute_s, memory_s: compute_s + memory_s},),
    "takes the shorter of arithmetic and memory: the product is done when both are": (
        {"limit": min},
    ),
    "counts only arithmetic: with few rows, reading the factors takes longer": (
        {"limit": lambda compute_s, memory_s: compute_s},
    ),
    "counts only memory: with many rows, arithmetic takes longer": (
        {"limit": lambda compute_s, memory_s: memory_s},
    ),
    "counts one operation for each multiplication and addition: they are two": ({"flops": 1},),
    "leaves the result out of the memory traffic: it is written once": ({"moved": (1, 1, 0)},),
    "counts the memory traffic of one factor only, or of the result only: both factors are read "
    "once, and the result is written once": tuple(
        {"moved": each} for each in ((1, 0, 1), (0, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    ),
    "moves the result more than once: it is written and not read": ({"moved": (1, 1, 2)},),
    "counts the whole product on each rank: a rank has inner / ranks of the inner dimension": (
        {"split": lambda m, k, c, n: (m, k, c)},
    ),
    "splits the rows or the columns: the ranks split inner, so that each has a result of full "
    "size to add": (
        {"split": lambda m, k, c, n: (m / n, k, c)},
        {"split": lambda m, k, c, n: (m, k, c / n)},
    ),
    "does not multiply by element_bytes": ({"size": lambda e: 1}, {"size": lambda e: 2}),
    "counts bits as bytes: a link of 8 bits/s carries one byte a second": ({"bits": 1},),
    "multiplies by the bits of a byte where it should divide, or the other way round: sending B "
    "bytes takes 8B / link_bits_per_s": ({"bits": 1 / 8},),
    "counts the latency of one message: a ring sends 2(n - 1), one after another": (
        {"messages": lambda n: min(n - 1, 1)},
        {"messages": lambda n: 1},
    ),
    "leaves the latency out: each of the 2(n - 1) messages has it": ({"messages": lambda n: 0},),
    "counts the wrong number of messages: a ring's reduce-scatter takes n - 1, and so does its "
    "all-gather": (
        {"messages": lambda n: n - 1},
        {"messages": lambda n: 2 * n},
        {"messages": lambda n: n},
        {"messages": lambda n: 2 * (n - 1) / n},
        {"messages": lambda n: 2},
    ),
    "sends the tensor twice: a ring sends 2(n - 1)/n of it": ({"sent": lambda n: 2},),
    "sends the whole tensor in each of the 2(n - 1) messages: a message is 1/n of it": (
        {"sent": two_halves},
    ),
    "sends 2/n of the tensor: there are 2(n - 1) messages of 1/n": ({"sent": lambda n: 2 / n},),
    "counts one half of the ring's bytes: there is a reduce-scatter and an all-gather": (
        {"sent": lambda n: (n - 1) / n},
    ),
    "counts one half of the ring, in messages and in bytes: there is a reduce-scatter and an "
    "all-gather": ({"messages": lambda n: n - 1, "sent": lambda n: (n - 1) / n},),
    "reduces the wrong matrix: the ranks add their results, [rows, columns]": (
        {"reduced": lambda m, k, c, n: m * k},
        {"reduced": lambda m, k, c, n: k * c},
        {"reduced": lambda m, k, c, n: m * k / n},
        {"reduced": lambda m, k, c, n: k * c / n},
        {"reduced": lambda m, k, c, n: m * c / n},
    ),
}
MISTAKES = mistakes(right, CHANGES)


def draw(case: Case, rng: np.random.Generator) -> list[list[Any]]:
    drawn = []
    for index in range(24):
        ranks = 1 if case.name == ONE else int(rng.integers(3, 65))
        # A third each: arithmetic sets the time, reading a factor, writing the result.
        few_rows, thin = index % 3 == 1, index % 3 == 2
        rows = int(rng.integers(1, 40) if few_rows else rng.integers(4000, 30_000))
        machine = {
            "flops_per_s": 1e12 * int(rng.integers(100, 2000)),
            "memory_bytes_per_s": 1e10 * int(rng.integers(100, 800)),
            "nvlink_bytes_per_s": 1e9 * int(rng.integers(300, 1800)),
            "link_bits_per_s": 1e9 * int(rng.integers(25, 800)),
            "latency_s": 1e-6 * int(rng.integers(2, 50)),
            "devices_per_node": int(rng.integers(2, 17)),
        }
        inner = ranks * int(rng.integers(1, 40) if thin else rng.integers(1000, 3000))
        columns = int(rng.integers(1000, 30_000))
        drawn.append([rows, inner, columns, int(rng.choice([1, 2, 4])), machine, ranks])
    return drawn
