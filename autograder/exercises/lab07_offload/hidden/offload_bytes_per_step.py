import itertools
from collections.abc import Callable

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


def with_parameters(
    method: str, psi: int, n: int, precision: str = "bf16", micro_batches: int = 1
) -> Bytes:
    state_bytes = 12 if precision == "fp32" else 14
    return right(method, psi, n, precision, micro_batches, state_bytes=state_bytes)


def with_states_of(state_bytes: int) -> Callable[..., Bytes]:
    return lambda *question: right(*question, state_bytes=state_bytes)


def for_each_micro_batch(
    method: str, psi: int, n: int, precision: str = "bf16", micro_batches: int = 1
) -> Bytes:
    down, up = right(method, psi, n, precision, micro_batches)
    times = micro_batches if method == "swap" else 1
    return times * down, times * up


def widened(method: str, psi: int, n: int, precision: str = "bf16", *micro_batches: int) -> Bytes:
    down, up = right(method, psi, n, precision, *micro_batches)
    return down * (1 if method == "swap" or precision == "fp32" else 2), up


MISTAKES: dict[str, Callable[..., Bytes]] = {
    "forgets to divide by N: each rank moves only its own share": (
        lambda method, psi, n, *more: right(method, psi, 1, *more)
    ),
    "forgets that there is a backward pass for each micro-batch": (
        lambda method, psi, n, precision="bf16", *_: right(method, psi, n, precision)
    ),
    "counts fp32, 4Ψ: elements move in 16 bits, 2 bytes each": (
        lambda *question: right(*question, element_bytes=4)
    ),
    "counts DeepSpeed's gradients, which it widens to fp32: count the paper's, which move in the "
    "precision of the training": widened,
    "swaps the states for each micro-batch: a step has one update": for_each_micro_batch,
    "forgets the fp32 master: there are three states in 16-bit training": with_states_of(8),
    "counts a master copy: in fp32 training the parameters are their own masters": (
        with_states_of(12)
    ),
    "counts gradients or parameters as well: only the fp32 states swap": with_parameters,
    "is (up, down), not (down, up)": lambda *question: right(*question)[::-1],
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
