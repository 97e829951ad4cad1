"""The whole ring, built of the student's own halves; here ours stand in for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from autograder.exercise import NAMED, Case, OnRanks, Plain
from autograder.exercises.lab03_ring_all_reduce.shared import (
    HALF_MIB_OF_FLOAT32,
    P2P_ONLY,
    WITHIN_ONE_PERCENT,
    Bounds,
    bounds_in,
    draw_tensors,
    hub,
    ring_case,
    tensor_or_none,
    whole_tensors,
    works_on_a_copy,
)
from autograder.guest.on_rank import standing_in


def direct_reduce_scatter(tensor: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    """Stands in for the student's: as many bytes as in a ring, sent straight to their owners."""
    rank = dist.get_rank()
    start, stop = bounds[rank]
    own = tensor[start:stop]
    others = [peer for peer in range(len(bounds)) if peer != rank]
    received = [torch.empty_like(own) for _ in others]
    works = [dist.irecv(part, peer) for part, peer in zip(received, others, strict=True)]
    works += [dist.isend(tensor[slice(*bounds[peer])], peer) for peer in others]
    wait_for(works)
    for part in received:
        own += part
    return own


def wait_for(works: list[dist.Work | None]) -> None:
    for work in works:
        if work is not None:
            work.wait()


def direct_all_gather(tensor: torch.Tensor, bounds: Bounds) -> None:
    rank = dist.get_rank()
    others = [peer for peer in range(len(bounds)) if peer != rank]
    works = [dist.irecv(tensor[slice(*bounds[peer])], peer) for peer in others]
    works += [dist.isend(tensor[slice(*bounds[rank])], peer) for peer in others]
    wait_for(works)


def drive(subject: Callable[..., Any], tensor: torch.Tensor, case: Case) -> Plain:
    def chunk_bounds(length: int, world_size: int) -> Bounds:
        if (length, world_size) != (case.params["length"], case.world_size):
            raise ValueError(
                f"chunk_bounds({length}, {world_size}) is not of this tensor and group"
            )
        return bounds_in(case)

    subject = standing_in(
        subject,
        chunk_bounds=chunk_bounds,
        reduce_scatter=direct_reduce_scatter,
        all_gather=direct_all_gather,
    )
    returned = subject(tensor, op=case.params["op"])
    return {"tensor": tensor, "returned": tensor_or_none(returned)}


# Both operations at 4 ranks: who knows only one of them is not sent to look for a 4.
EXERCISE = OnRanks(
    points=5,
    cases=(
        ring_case(4, 12, op="mean", suffix=", mean"),
        ring_case(3, 10, op="sum", suffix=", sum"),
        ring_case(2, HALF_MIB_OF_FLOAT32, op="mean", suffix=", mean"),
        ring_case(4, HALF_MIB_OF_FLOAT32, op="sum", suffix=", sum"),
        ring_case(8, HALF_MIB_OF_FLOAT32, op="mean", suffix=", mean"),
    ),
    inputs=draw_tensors,
    drive=drive,
    budgets=(WITHIN_ONE_PERCENT,),
    allows=P2P_ONLY,
    signs=(works_on_a_copy, NAMED, hub, whole_tensors),
)
