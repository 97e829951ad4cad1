"""Shared by hidden halves: bounds, and limits on bytes."""

from collections.abc import Callable, Sequence

import torch

from autograder.exercise import Case, Limit, Plain
from autograder.exercise.hidden import with_random_delays
from autograder.exercises.lab03_ring_all_reduce.hidden.chunk_bounds import right as bounds_of
from autograder.exercises.lab03_ring_all_reduce.shared import (
    BUDGET_FROM_BYTES,
    RIGHT_NEIGHBOR_ONLY,
    WITHIN_ONE_PERCENT,
    ring_case,
)

NEGATIVE_INDEX = "Python counts negative indices from the end"

# Who pads each chunk to the longest sends far more bytes than these have.
VERY_UNEVEN = [(0, 200_000), (200_000, 200_002), (200_002, 200_002), (200_002, 300_002)]
HALVES_HIDDEN = (
    ring_case(5, 75_001, "float64"),
    with_random_delays(ring_case(4, 50, "int64", bounds=[(0, 20), (20, 20), (20, 27), (27, 50)])),
    ring_case(5, 3, called_before=True),
    ring_case(3, 1, "float64"),
    ring_case(4, 300_002, "bfloat16", bounds=VERY_UNEVEN),
)
HALVES_BOUNDARIES = {
    "divides": "4 ranks, 12 elements",
    "does not divide": "3 ranks, 10 elements, uneven chunks",
    "one rank": "not tested: the task says that there are at least two",
    "more ranks than elements": "5 ranks, 3 elements",
}
UNEVEN_CHUNKS = {"uneven chunks": "3 ranks, 10 elements, uneven chunks"}


def bounds(case: Case) -> dict[str, Plain]:
    """A case's own bounds, or even ones."""
    even = bounds_of(case.params["length"], case.world_size)
    return {"bounds": case.params.get("bounds", even)}


def even_chunks(case: Case, tensor: torch.Tensor) -> list[torch.Tensor]:
    """Cut by the length alone, whatever the case's bounds."""
    return list(tensor.tensor_split(case.world_size))


def ideal_bytes(case: Case, not_sent: Sequence[int]) -> list[float] | None:
    """What each rank sends in a ring: in each half every chunk but one, for rank r the chunk
    r + ``not_sent[half]``; None if the tensor is too small to measure."""
    length, n = case.params["length"], case.world_size
    element_bytes = getattr(torch, case.params["dtype"]).itemsize
    if length * element_bytes < BUDGET_FROM_BYTES:
        return None
    chunks = [stop - start for start, stop in bounds(case)["bounds"]]
    sent = [sum(length - chunks[(r + each) % n] for each in not_sent) for r in range(n)]
    return [elements * element_bytes for elements in sent]


def limits(not_sent: Sequence[int]) -> dict[str, Callable[[Case], Limit | None]]:
    def sent(case: Case) -> Limit | None:
        ideal = ideal_bytes(case, not_sent)
        return Limit.around(ideal, 0.01) if ideal else None

    def elsewhere(case: Case) -> Limit | None:
        """Not 0: gloo's receiver reports to its sender, the left neighbor, that it is ready."""
        ideal = ideal_bytes(case, not_sent)
        return Limit([0.01 * each for each in ideal]) if ideal else None

    return {WITHIN_ONE_PERCENT.label: sent, RIGHT_NEIGHBOR_ONLY.label: elsewhere}
