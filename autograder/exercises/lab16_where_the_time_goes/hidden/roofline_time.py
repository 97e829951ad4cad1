from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from autograder.exercise import Case, questions
from autograder.exercises.lab16_where_the_time_goes.hidden.shared import mistakes

Machine = dict[str, float]
ONE, SEVERAL = "drawn products", "drawn products on several ranks"
CASES = (questions(ONE), questions(SEVERAL, weight=2))
BOUNDARIES = {
    "divides": "several ranks: a large all-reduce, a small one",
    "does not divide": "not tested: the task says that the ranks divide inner",
    "one rank": "one device: many rows, few rows, a small inner dimension",
    "more ranks than elements": "not tested, as above",
}


def sum_of(one: float, other: float) -> float:
    return one + other


def two_halves(n: int) -> int:
    """Messages that a rank of a ring sends one after another: reduce-scatter and all-gather."""
    return 2 * (n - 1)


def right(
    rows: int,
    inner: int,
    columns: int,
    element_bytes: int,
    machine: Machine,
    ranks: int = 1,
    *,
    flops: float = 2,
    of_a_rank: Callable[[int], tuple[float, float, float, float]] = lambda n: (1, 1, n, 1),
    limit: Callable[[float, float], float] = max,
    size: Callable[[int], float] = lambda element_bytes: element_bytes,
    messages: Callable[[int], float] = two_halves,
    sent: Callable[[int], float] = lambda n: two_halves(n) / n,
    reduced: Callable[..., float] = lambda m, k, c, n: m * c,
    link_bytes_per_s: Callable[[Machine], float] = lambda machine: machine["link_bits_per_s"] / 8,
    together: Callable[[float, float], float] = sum_of,
    unit: float = 1,
) -> dict[str, float]:
    """Williams et al. 2009; Patarasuk and Yuan 2009. The keywords are what mistakes change.

    of_a_rank: how often it reads or writes 1/n of the left factor, the right factor and the result,
    and computes 1/n of the operations.  sent: of a tensor.
    """
    left, right_, result, work = (share / ranks for share in of_a_rank(ranks))
    elements = left * rows * inner + right_ * inner * columns + result * rows * columns
    compute_s = work * flops * rows * inner * columns / machine["flops_per_s"]
    memory_s = elements * size(element_bytes) / machine["memory_bytes_per_s"]
    sent_bytes = sent(ranks) * reduced(rows, inner, columns, ranks) * size(element_bytes)
    latency_s = messages(ranks) * machine["latency_s"]
    return {
        "product_s": unit * limit(compute_s, memory_s),
        "all_reduce_s": unit * together(latency_s, sent_bytes / link_bytes_per_s(machine)),
    }


CHANGES: dict[str, tuple[dict[str, Any], ...]] = {
    "adds the times of arithmetic and of memory: both run at the same time, so the longer one "
    "counts": ({"limit": sum_of},),
    "takes the shorter of arithmetic and memory: the product is done when both are": (
        {"limit": min},
    ),
    "leaves memory out, or nearly: with few rows, reading the factors takes longer than "
    "arithmetic": (
        {"limit": lambda compute_s, memory_s: compute_s},
        {"of_a_rank": lambda n: (1, 0, 0, 1)},
    ),
    "counts only memory: with many rows, arithmetic takes longer": (
        {"limit": lambda compute_s, memory_s: memory_s},
    ),
    "counts one operation for each multiplication and addition: they are two": ({"flops": 1},),
    "leaves the result out of the memory traffic: it is written once": (
        {"of_a_rank": lambda n: (1, 1, 0, 1)},
    ),
    "counts the memory traffic of one factor only, or of the result only: both factors are read "
    "once, and the result is written once": (
        {"of_a_rank": lambda n: (1, 0, n, 1)},
        {"of_a_rank": lambda n: (0, 1, n, 1)},
        {"of_a_rank": lambda n: (0, 1, 0, 1)},
        {"of_a_rank": lambda n: (0, 0, n, 1)},
    ),
    "moves the result more than once: it is written and not read": (
        {"of_a_rank": lambda n: (1, 1, 2 * n, 1)},
    ),
    "counts the whole product on each rank: a rank has 1 / ranks of the inner dimension": (
        {"of_a_rank": lambda n: (n, n, n, n)},
    ),
    "splits the operations, but not both factors: a rank has 1 / ranks of each": (
        {"of_a_rank": lambda n: (n, n, n, 1)},
        {"of_a_rank": lambda n: (1, n, n, 1)},
        {"of_a_rank": lambda n: (n, 1, n, 1)},
    ),
    "splits the factors, but not the operations: a rank multiplies 1 / ranks of each row": (
        {"of_a_rank": lambda n: (1, 1, n, n)},
    ),
    "splits the result: each rank has a part of the sum for every element of it": (
        {"of_a_rank": lambda n: (1, 1, 1, 1)},
        {"of_a_rank": lambda n: (1, n, 1, 1)},
        {"of_a_rank": lambda n: (n, 1, 1, 1)},
    ),
    "does not multiply by element_bytes": ({"size": lambda e: 1}, {"size": lambda e: 2}),
    "counts bits as bytes: a link of 8 bits/s carries one byte a second": (
        {"link_bytes_per_s": lambda m: m["link_bits_per_s"]},
    ),
    "multiplies by the bits of a byte where it should divide, or the other way round: sending B "
    "bytes takes 8B / link_bits_per_s": ({"link_bytes_per_s": lambda m: 8 * m["link_bits_per_s"]},),
    "takes another link: each rank sends through its own, of link_bits_per_s": (
        {"link_bytes_per_s": lambda m: m["nvlink_bytes_per_s"]},
        {"link_bytes_per_s": lambda m: m["nvlink_bytes_per_s"] / 2},
        {"link_bytes_per_s": lambda m: m["nvlink_bytes_per_s"] / 8},
        {"link_bytes_per_s": lambda m: m["devices_per_node"] * m["link_bits_per_s"] / 8},
        {"link_bytes_per_s": lambda m: m["link_bits_per_s"] / 8 / m["devices_per_node"]},
    ),
    "takes the longer of the latency and the time of the bytes: a message has both, one after the "
    "other": ({"together": max},),
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
    "sends whole tensors along a tree: this ring sends 2(n - 1) chunks of 1/n": (
        {"messages": lambda n: 2 * math.log2(n), "sent": lambda n: 2 * math.log2(n)},
        {"messages": math.log2, "sent": math.log2},
    ),
    "reduces the wrong matrix: the ranks add their results, [rows, columns]": (
        {"reduced": lambda m, k, c, n: m * k},
        {"reduced": lambda m, k, c, n: k * c},
        {"reduced": lambda m, k, c, n: m * k / n},
        {"reduced": lambda m, k, c, n: k * c / n},
        {"reduced": lambda m, k, c, n: m * c / n},
    ),
    "gives milliseconds or microseconds: return seconds": ({"unit": 1e3}, {"unit": 1e6}),
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
