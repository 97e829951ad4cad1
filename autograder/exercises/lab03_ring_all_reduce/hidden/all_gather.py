from typing import Any

import torch

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab03_ring_all_reduce.hidden import shared
from autograder.exercises.lab03_ring_all_reduce.shared import chunks_of

CASES, LIMITS, facts = shared.HALVES_HIDDEN, shared.limits(not_sent=(1,)), shared.bounds
EQUIVALENT_ANSWERS = (
    EquivalentAnswer("(rank - step) % world_size", "rank - step", shared.NEGATIVE_INDEX),
    EquivalentAnswer("(rank - step - 1) % world_size", "rank - step - 1", shared.NEGATIVE_INDEX),
)
BOUNDARIES = shared.HALVES_BOUNDARIES | shared.UNEVEN_CHUNKS


def reference(case: Case, inputs: Any) -> dict[str, torch.Tensor]:
    own = [chunks_of(case, buffer)[rank] for rank, buffer in enumerate(inputs)]
    return {"tensor": torch.cat(own)}


def added(case: Case, inputs: Any) -> list[Plain]:
    """Chunk c travels from rank c along the ring, and each rank adds its own values to it."""
    n = case.world_size
    buffers = [[chunk.clone() for chunk in chunks_of(case, buffer)] for buffer in inputs]
    for step in range(n - 1):
        for rank in range(n):  # chunk (rank - step) leaves rank, as it is there now
            chunk = (rank - step) % n
            buffers[(rank + 1) % n][chunk] += buffers[rank][chunk]
    return [{"tensor": torch.cat(chunks)} for chunks in buffers]


def cut_evenly(case: Case, inputs: Any) -> list[Plain]:
    own = [shared.even_chunks(case, buffer)[rank] for rank, buffer in enumerate(inputs)]
    return [{"tensor": torch.cat(own)}] * case.world_size


def stops_early(case: Case, inputs: Any) -> list[Plain]:
    """After N - 2 steps each rank lacks the chunk of its right neighbor."""
    whole, n = reference(case, inputs)["tensor"], case.world_size
    found = []
    for rank, buffer in enumerate(inputs):
        chunks = [*chunks_of(case, whole)]
        chunks[(rank + 1) % n] = chunks_of(case, buffer)[(rank + 1) % n]
        found.append({"tensor": torch.cat(chunks)})
    return found


def unchanged(case: Case, inputs: Any) -> list[Plain]:
    return [{"tensor": tensor} for tensor in inputs]


MISTAKES = {
    "lacks its right neighbor's chunk: all-gather over N ranks takes N - 1 steps": stops_early,
    "leaves tensor as it was: receive into views of tensor itself, not of a copy": unchanged,
    "adds a received chunk to the old values: in all-gather it replaces them": added,
    "cuts tensor into equal chunks: the argument bounds says where each begins and ends": (
        cut_evenly
    ),
}
