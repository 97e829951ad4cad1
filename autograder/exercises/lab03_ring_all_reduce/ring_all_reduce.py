"""The whole ring, built from the student's two halves; the check replaces them with its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.exercise import NAMED_MISTAKES, Case, OnRanks, Plain
from autograder.exercise.signs import never_waited
from autograder.exercises.lab03_ring_all_reduce import shared
from autograder.exercises.lab03_ring_all_reduce.shared import (
    Bounds,
    bounds_in,
    first_call,
    ring_case,
    tensor_or_none,
)
from autograder.guest.on_rank import with_functions_replaced


def cut(name: str, tensor: torch.Tensor, bounds: Bounds) -> list[torch.Tensor]:
    """Raises ValueError if these are not the bounds of this tensor."""
    n, end = dist.get_world_size(), max((stop for _, stop in bounds), default=0)
    if (len(bounds), end) != (n, len(tensor)):
        raise ValueError(
            f"{name}(tensor, bounds): tensor has {len(tensor)} elements and the group {n} ranks, "
            f"bounds has {len(bounds)} chunks and ends at {end}"
        )
    return [tensor[start:stop] for start, stop in bounds]


def direct_reduce_scatter(tensor: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    """Replaces the student's: as many bytes as in a ring, sent directly to their owners."""
    chunks = cut("reduce_scatter", tensor, bounds)
    own = chunks[dist.get_rank()]
    received = [torch.zeros_like(own) for _ in chunks]
    exchange(chunks, received)
    for part in received:
        own += part
    return own


def direct_all_gather(tensor: torch.Tensor, bounds: Bounds) -> None:
    chunks = cut("all_gather", tensor, bounds)
    exchange([chunks[dist.get_rank()]] * len(chunks), chunks)


def exchange(to_send: list[torch.Tensor], to_receive: list[torch.Tensor]) -> None:
    """One tensor to each other rank, and one from it; both are lists by rank."""
    others = [peer for peer in range(len(to_send)) if peer != dist.get_rank()]
    works = [dist.irecv(to_receive[peer], peer) for peer in others]
    works += [dist.isend(to_send[peer], peer) for peer in others]
    for work in works:
        if work is not None:
            work.wait()


def draw(case: Case, rng: np.random.Generator) -> list[torch.Tensor]:
    """In one case, a rank has only zeros: it takes part like any other."""
    tensors = shared.draw_tensors(case, rng)
    if case.params.get("called_before"):
        tensors[1].zero_()
    return tensors


def drive(subject: Callable[..., Any], tensor: torch.Tensor, case: Case) -> Plain:
    before, bounds_before = first_call(case, tensor)

    def chunk_bounds(length: int, world_size: int) -> Bounds:
        if world_size == case.world_size and length == len(tensor):
            return bounds_in(case)
        if world_size == case.world_size and length == len(before):
            return bounds_before
        right = f"chunk_bounds{len(tensor), case.world_size}"
        raise ValueError(
            f"chunk_bounds{length, world_size}: tensor has {len(tensor)} elements and the group "
            f"{case.world_size} ranks, so {right}"
        )

    subject = with_functions_replaced(
        subject,
        chunk_bounds=chunk_bounds,
        reduce_scatter=direct_reduce_scatter,
        all_gather=direct_all_gather,
    )
    if case.params.get("called_before"):
        subject(before, op="mean")
    options = {} if case.params.get("by_default") else {"op": case.params["op"]}
    returned = subject(tensor[:], **options)  # a view, whose values are those of tensor
    return {"tensor": tensor, "returned": tensor_or_none(returned)}


# 4 ranks run both ops: an answer with only one op must not be diagnosed as working only for N = 4.
OPERATIONS = ("mean", "sum", "mean", "sum", "mean")

EXERCISE = OnRanks(
    points=5,
    cases=tuple(
        ring_case(*size, op=op, suffix=f", {op}")
        if size[0] != 3
        else ring_case(*size, op="sum", suffix=", sum by default", by_default=True)
        for size, op in zip(shared.SIZES, OPERATIONS, strict=True)
    ),
    inputs=draw,
    drive=drive,
    budgets=(shared.WITHIN_ONE_PERCENT,),
    allows=shared.P2P_ONLY,
    rules=(never_waited,),
    draws_messages=False,  # ours do not use the ring
    signs=(
        shared.works_on_a_copy,
        NAMED_MISTAKES,
        shared.hub,
        shared.whole_tensors,
    ),
)
