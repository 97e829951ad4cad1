"""The first half of a ring: rank r ends with chunk r of the sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from autograder.exercise import NAMED_MISTAKES, Case, OnRanks, Plain
from autograder.exercise.signs import MistakeText, on_each_rank
from autograder.exercises.lab03_ring_all_reduce import shared
from autograder.exercises.lab03_ring_all_reduce.shared import Bounds, bounds_in, call_half


def drive(
    subject: Callable[[torch.Tensor, Bounds], Any], tensor: torch.Tensor, case: Case
) -> Plain:
    found = call_half(subject, tensor, case)
    returned = found["returned"]
    start, stop = bounds_in(case)[dist.get_rank()]
    is_view = isinstance(returned, torch.Tensor) and (
        returned.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    )
    return {
        **found,
        "tensor[start:stop]": tensor[start:stop],
        "returned is a view": is_view,
    }


@on_each_rank
def own_values(output: Any, rank: int, given: Any, case: Case) -> MistakeText:
    own = shared.chunks_of(case, given)[rank]
    if not len(own) or not torch.equal(own, output["returned"]):
        return None
    return (
        "returns its chunk with only its own values: in the last of N - 1 steps the sum of "
        "the others' values arrives, and is added in place (if it is: is it read before it has "
        "arrived, or changed before it is sent?)"
    )


REACHES_ITS_RANK_LAST = (
    "sends the wrong chunk: chunk r has to reach rank r last, so rank r first sends chunk r - 1, "
    "then the one it added to last"
)

EXERCISE = OnRanks(
    points=5,
    cases=shared.HALVES_CASES,
    inputs=shared.draw_tensors,
    drive=drive,
    budgets=shared.HALVES_BUDGETS,
    allows=shared.P2P_ONLY,
    rules=shared.HALVES_RULES,
    signs=(
        *shared.RING_SIGNS,
        NAMED_MISTAKES,
        shared.wrong_chunk(-1, REACHES_ITS_RANK_LAST),
        own_values,
    ),
)
