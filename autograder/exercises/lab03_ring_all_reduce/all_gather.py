"""The second half of a ring: every rank gets every chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from autograder.exercise import NAMED_MISTAKES, Case, OnRanks, Plain
from autograder.exercises.lab03_ring_all_reduce import shared
from autograder.exercises.lab03_ring_all_reduce.shared import (
    Bounds,
    call_half,
    chunks_of,
    tensor_or_none,
)


def draw_buffers(case: Case, rng: np.random.Generator) -> list[torch.Tensor]:
    """Only chunk r of rank r's buffer is correct; the values of the rest must not matter."""
    buffers = shared.draw_tensors(case, rng)
    special = {0: torch.inf, 1: torch.nan} if case.params.get("called_before") else {}
    for rank, buffer in enumerate(buffers):
        for chunk, values in enumerate(chunks_of(case, buffer)):
            if chunk != rank:
                values.fill_(special[rank]) if rank in special else values.neg_()
    return buffers


def drive(
    subject: Callable[[torch.Tensor, Bounds], Any], tensor: torch.Tensor, case: Case
) -> Plain:
    found = call_half(subject, tensor, case)
    return {**found, "tensor": tensor, "returned": tensor_or_none(found["returned"])}


STARTS_WITH_ITS_OWN = (
    "sends the wrong chunk: it should send first its own, then always the one it received last"
)

EXERCISE = OnRanks(
    points=4,
    cases=shared.HALVES_CASES,
    inputs=draw_buffers,
    drive=drive,
    budgets=shared.HALVES_BUDGETS,
    allows=shared.P2P_ONLY,
    rules=shared.HALVES_RULES,
    signs=(
        *shared.RING_SIGNS,
        shared.works_on_a_copy,
        NAMED_MISTAKES,
        shared.wrong_chunk(0, STARTS_WITH_ITS_OWN),
    ),
)
