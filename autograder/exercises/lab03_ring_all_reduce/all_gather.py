"""The second half of a ring: every rank gets every chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from autograder.exercise import NAMED_MISTAKES, Attempt, Case, OnRanks, Plain
from autograder.exercise.signs import MistakeText, on_each_rank
from autograder.exercises.lab03_ring_all_reduce import shared
from autograder.exercises.lab03_ring_all_reduce.shared import (
    Bounds,
    bounds_in,
    chunks_of,
    first_call,
    tensor_or_none,
)


def draw_buffers(case: Case, rng: np.random.Generator) -> list[torch.Tensor]:
    """Only chunk r of rank r's buffer is correct; the values of the rest must not matter."""
    buffers = shared.draw_tensors(case, rng)
    for rank, buffer in enumerate(buffers):
        for chunk, values in enumerate(chunks_of(case, buffer)):
            if chunk != rank:
                values.neg_()
    return buffers


def drive(
    subject: Callable[[torch.Tensor, Bounds], Any], tensor: torch.Tensor, case: Case
) -> Plain:
    if case.params.get("called_before"):
        subject(*first_call(case, tensor))
    returned = subject(tensor, bounds_in(case))
    return {"tensor": tensor, "returned": tensor_or_none(returned)}


@on_each_rank
def missing_chunks(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    calls = attempt.run.calls if attempt.run else []
    sends = [call for call in calls if call.rank == rank and call.op == "send"]
    if len(sends) >= attempt.case.world_size - 1:
        return None
    wanted, before, got = (
        chunks_of(attempt.case, tensor)
        for tensor in (attempt.expected[rank]["tensor"], attempt.inputs[rank], output["tensor"])
    )
    for chunk, values in enumerate(got):
        if not torch.equal(wanted[chunk], values) and torch.equal(before[chunk], values):
            mistake = "has chunks that never arrived: all-gather over N ranks takes N - 1 steps"
            return mistake, f"chunk {chunk} is unchanged"
    return None


STARTS_WITH_ITS_OWN = (
    "sends the wrong chunk: first its own, the only one it has, then the one it received last"
)

EXERCISE = OnRanks(
    points=4,
    cases=shared.HALVES_CASES,
    inputs=draw_buffers,
    drive=drive,
    budgets=shared.HALVES_BUDGETS,
    allows=shared.P2P_ONLY,
    rules=shared.RULES,
    signs=(
        *shared.RING_SIGNS,
        shared.works_on_a_copy,
        NAMED_MISTAKES,
        missing_chunks,
        shared.wrong_chunk(0, STARTS_WITH_ITS_OWN),
    ),
)
