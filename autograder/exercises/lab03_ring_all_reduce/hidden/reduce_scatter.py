from typing import Any

import torch

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab03_ring_all_reduce.hidden import shared
from autograder.exercises.lab03_ring_all_reduce.shared import chunks_of

CASES, LIMITS, facts = shared.HALVES_HIDDEN, shared.limits(not_sent=(0,)), shared.bounds
BOUNDARIES = shared.HALVES_BOUNDARIES | shared.UNEVEN_CHUNKS
EQUIVALENT_ANSWERS = (
    EquivalentAnswer("(rank - step - 1) % world_size", "rank - step - 1", shared.NEGATIVE_INDEX),
    EquivalentAnswer("(rank - step - 2) % world_size", "rank - step - 2", shared.NEGATIVE_INDEX),
    EquivalentAnswer(
        "incoming += received", "incoming.add_(received)", "the same addition in place"
    ),
    EquivalentAnswer(
        "        sending.wait()\n        incoming += received",
        "        incoming += received\n        sending.wait()",
        "the chunk in flight is another one",
    ),
)


def reference(case: Case, inputs: Any) -> list[Plain]:
    return [
        {"returned": chunk, "tensor[start:stop]": chunk, "returned is a view": True}
        for chunk in sums(case, inputs)
    ]


def sums(case: Case, inputs: Any) -> list[torch.Tensor]:
    return chunks_of(case, torch.stack(inputs).sum(dim=0))


def copies(case: Case, inputs: Any) -> list[Plain]:
    return [{"returned": chunk, "returned is a view": False} for chunk in sums(case, inputs)]


def cut_evenly(case: Case, inputs: Any) -> list[Plain]:
    chunks = shared.even_chunks(case, torch.stack(inputs).sum(dim=0))
    return [{"returned": chunk} for chunk in chunks]


MISTAKES = {
    "returns a copy of the sum: return the view of tensor in which it was added up": copies,
    "cuts tensor into equal chunks: the argument bounds says where each begins and ends": (
        cut_evenly
    ),
}
