import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from autograder.exercise import Case, questions
from autograder.exercise.hidden import EquivalentAnswer
from shardlab.estimate import offload

CASES = (questions("every method and precision"),)
BOUNDARIES = {
    "divides": "on 8 ranks, 4 micro-batches",
    "does not divide": "not tested: N divides the parameters, so that answers are whole bytes",
    "one rank": "ZeRO-Offload on one device",
    "more ranks than elements": "not tested, as above",
    "one micro-batch": "ZeRO-Offload on one device",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "return states, states", "return [states, states]", "a list is as good as a tuple"
    ),
    EquivalentAnswer(
        "own = parameters / world_size", "own = parameters // world_size", "N divides Ψ"
    ),
)
METHODS = ("swap", "zero-offload", "parameters")
PRECISIONS = ("bf16", "fp16", "fp32")

Bytes = tuple[float, float]  # to the host, to the device
Answer = Callable[..., Bytes | None]


def right(
    method: str,
    psi: int,
    n: int,
    precision: str = "bf16",
    micro_batches: int = 1,
    **sizes: int,
) -> Bytes:
    """(arXiv 2101.06840, section 3; parameters on the host: arXiv 2104.07857)

    States are momentum and variance; in 16-bit training the fp32 master as well.
    """
    element_bytes, state_bytes = (4, 8) if precision == "fp32" else (2, 12)
    sizes = {"element_bytes": element_bytes, "state_bytes": state_bytes} | sizes
    moved = offload.moved_bytes(psi, method, world_size=n, micro_batches=micro_batches, **sizes)
    return moved.to_host_bytes, moved.to_device_bytes


def right_with(**changes: Any) -> Answer:
    names = ("method", "psi", "n", "precision", "micro_batches")
    return lambda *question: right(**dict(zip(names, question, strict=False)) | changes)


def times(down: float, up: float, only: str = "") -> Answer:
    def wrong(method: str, *rest: Any) -> Bytes | None:
        right_down, right_up = right(method, *rest)
        return (down * right_down, up * right_up) if only in ("", method) else None

    return wrong


def asked(question: tuple[Any, ...]) -> tuple[Any, ...]:
    """With the default precision and number of micro-batches, if the question has none."""
    return (*question, *("bf16", 1)[len(question) - 3 :])


def narrow_up(*question: Any) -> Bytes | None:
    return times(1, 0.5 if asked(question)[3] == "fp32" else 1)(*question)


MISTAKES: dict[str, Answer | tuple[Answer, ...]] = {
    "forgets to divide by N: each rank moves only its own share": right_with(n=1),
    "is in GiB: return bytes": times(2**-30, 2**-30),
    "is in GB: return bytes": times(1e-9, 1e-9),
    "counts one direction only: parameters come back up": times(1, 0),
    "counts one direction only: gradients go down": times(0, 1),
    "forgets that there is a backward pass for each micro-batch": right_with(micro_batches=1),
    "counts the wrong states: 16-bit training has an fp32 master as well, fp32 training has none": (
        right_with(state_bytes=12),
        right_with(state_bytes=8),
    ),
    "counts fp32, 4Ψ: elements move in 16 bits, 2 bytes each": right_with(element_bytes=4),
    "counts 16 bits, 2Ψ: in fp32 training elements move as 4 bytes each": (
        right_with(element_bytes=2)
    ),
    "counts parameters with 2 bytes each: in fp32 training they take 4, like gradients": narrow_up,
    "moves its states for each micro-batch: there is one update per step": (
        lambda *q: times(asked(q)[4], asked(q)[4], "swap")(*q)
    ),
    "moves parameters up for each micro-batch: they change once per step": (
        lambda *q: times(1, asked(q)[4], "zero-offload")(*q)
    ),
    "moves parameters up once: forward and backward each need them": times(1, 0.5, "parameters"),
    "moves parameters up twice in a step: each micro-batch has a forward and a backward": (
        lambda *q: times(1, 1 / asked(q)[4], "parameters")(*q)
    ),
    "counts gradients or parameters as well: only the fp32 states swap": (
        lambda *q: right(*q, state_bytes=12 if asked(q)[3] == "fp32" else 14)
    ),
    "returns its two numbers in the wrong order: down first, then up": lambda *q: right(*q)[::-1],
}


def draw(case: Case, rng: np.random.Generator) -> list[tuple[str, int, int, str, int]]:
    """Each method and precision at one size, and then with one argument changed: no argument may
    be ignored, by an answer that remembers earlier ones either."""
    ranks, micro_batches = int(rng.integers(2, 33)), int(rng.integers(2, 9))
    parameters, more = (ranks * int(rng.integers(10**5, 10**8)) for _ in range(2))
    return [
        (method, size, n, precision, times)
        for method, precision in itertools.product(METHODS, PRECISIONS)
        for size, n, times in (
            (parameters, ranks, micro_batches),
            (more, ranks, micro_batches),
            (parameters, 1, micro_batches),
            (parameters, ranks, 1),
        )
    ]
