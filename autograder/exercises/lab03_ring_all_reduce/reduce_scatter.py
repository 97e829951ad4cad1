"""The first half of a ring: rank r ends with chunk r of the sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from autograder.exercise import NAMED_MISTAKES, Attempt, Case, OnRanks, Plain
from autograder.exercise.signs import MistakeText, on_each_rank
from autograder.exercises.lab03_ring_all_reduce import shared
from autograder.exercises.lab03_ring_all_reduce.shared import Bounds, bounds_in


def drive(
    subject: Callable[[torch.Tensor, Bounds], Any], tensor: torch.Tensor, case: Case
) -> Plain:
    returned = subject(tensor, bounds_in(case))
    start, stop = bounds_in(case)[dist.get_rank()]
    return {"returned": returned, "tensor[start:stop]": tensor[start:stop]}


@on_each_rank
def nothing_added(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    """Chunk r reaches rank r in the last step, so stopping early leaves it unchanged.

    So does starting with the rank's own chunk: the sum of chunk r + 1 then ends on rank r.
    """
    own = shared.chunks_of(attempt.case, attempt.inputs[rank])[rank]
    if not len(own) or not torch.equal(own, output["returned"]):
        return None
    reason = "the sum arrives in the last of N - 1 steps"
    calls = attempt.run.calls if attempt.run else []
    sends = [call for call in calls if call.rank == rank and call.op == "send"]
    if len(sends) == attempt.case.world_size - 1:
        reason = "chunk r has to reach rank r last, so rank r never sends it"
    return f"returns its own part, not the sum: {reason}"


EXERCISE = OnRanks(
    points=5,
    cases=shared.HALVES_CASES,
    inputs=shared.draw_tensors,
    drive=drive,
    budgets=shared.HALVES_BUDGETS,
    allows=shared.P2P_ONLY,
    signs=(*shared.RING_SIGNS, NAMED_MISTAKES, nothing_added),
)
