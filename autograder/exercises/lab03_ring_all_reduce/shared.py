"""Shared by the exercises on rings: cases, inputs, byte budgets, and signs in the calls.

The ring: rank r sends to its right neighbor r + 1 and receives from its left neighbor r - 1
(modulo N).  reduce-scatter leaves rank r with chunk r of the sum, all-gather starts from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from autograder.exercise import Attempt, Budget, Case, Finding, Plain, equal, sent_bytes
from autograder.exercise.form import Sign
from autograder.exercise.signs import MistakeText, never_waited, on_each_call, on_each_rank
from shardlab.run import Call, Run

Bounds = list[tuple[int, int]]

P2P_ONLY = frozenset({"send", "recv"})
HALF_MIB_OF_FLOAT32 = 2**17
# Below this, gloo's own messages (about 100 bytes for each send) would blur a budget of 1 %.
BUDGET_FROM_BYTES = 2**19


def ring_case(
    world_size: int,
    length: int,
    dtype: str = "float32",
    op: str = "sum",
    suffix: str = "",
    **more: Any,
) -> Case:
    """``called_before``: the answer is called once before, with a shorter tensor; ``by_default``:
    op is not passed."""
    size = "512 KiB" if length == HALF_MIB_OF_FLOAT32 else f"{length:,} elements"
    params = {"length": length, "dtype": dtype, "op": op, **more}
    return Case(f"{world_size} ranks, {size}{suffix}", world_size, params)


# (ranks, elements, dtype): for the whole ring, and for each of its halves.
SIZES = (
    (4, 12, "float32"),
    (3, 10, "float64"),
    *((ranks, HALF_MIB_OF_FLOAT32, "float32") for ranks in (2, 4, 8)),
)
UNEVEN = [(0, 6), (6, 6), (6, 10)]
HALVES_CASES = tuple(
    ring_case(*size, suffix=", uneven chunks", bounds=UNEVEN) if size[0] == 3 else ring_case(*size)
    for size in SIZES
)


def draw_tensors(case: Case, rng: np.random.Generator) -> list[torch.Tensor]:
    """Numbers that need every bit of their dtype, so fewer bytes or a smaller dtype lose some.

    All are positive: sums in any order differ by less than the tolerance.
    """
    dtype = getattr(torch, case.params["dtype"])
    shape = (case.world_size, case.params["length"])
    if dtype == torch.int64:  # a sum over 8 ranks still fits
        return list(torch.from_numpy(rng.integers(2**58, 2**59, size=shape)))
    # Beyond the digits of float16, the range of float16, and the range of float32.
    scale = {torch.float32: 100.0, torch.bfloat16: 1e6, torch.float64: 1e60}[dtype]
    return list(torch.from_numpy(rng.exponential(scale, size=shape)).to(dtype))


def bounds_in(case: Case) -> Bounds:
    """What chunk_bounds returns. It is another exercise's answer, so the case provides it."""
    return [(start, stop) for start, stop in case.params["bounds"]]


def first_call(case: Case, tensor: torch.Tensor) -> tuple[torch.Tensor, Bounds]:
    """Arguments of a call before the one whose results count: a shorter tensor of another dtype."""
    half = len(tensor) // 2
    bounds = [(min(start, half), min(stop, half)) for start, stop in bounds_in(case)]
    return torch.ones(half, dtype=torch.float64), bounds


def call_half(
    subject: Callable[[torch.Tensor, Bounds], Any], tensor: torch.Tensor, case: Case
) -> dict[str, Any]:
    """The answer gets a view of ``tensor``, which only changes if it works in place."""
    if case.params.get("called_before"):
        subject(*first_call(case, tensor))
    bounds = bounds_in(case)
    returned = subject(tensor[:], bounds)
    return {"returned": returned, "modifies bounds": bounds != bounds_in(case)}


def chunks_of(case: Case, tensor: torch.Tensor) -> list[torch.Tensor]:
    return [tensor[start:stop] for start, stop in bounds_in(case)]


# ---- budgets ------------------------------------------------------------------------------------


WITHIN_ONE_PERCENT = Budget("sends ≤ 1.01 × ideal bytes per rank", sent_bytes)


def sent_elsewhere(run: Run) -> list[int]:
    sent = run.traffic.sent_bytes
    ranks = range(run.world_size)
    return [int(sent[rank].sum() - sent[rank, (rank + 1) % len(ranks)]) for rank in ranks]


RIGHT_NEIGHBOR_ONLY = Budget(
    "sends to the right neighbor only", sent_elsewhere, heading="sent to other ranks"
)
HALVES_BUDGETS = (WITHIN_ONE_PERCENT, RIGHT_NEIGHBOR_ONLY)


# ---- signs --------------------------------------------------------------------------------------


def hub(attempt: Attempt) -> Finding | None:
    run, world_size = attempt.run, attempt.case.world_size
    if run is None or attempt.error is not None or world_size < 3:
        return None
    sent = run.traffic.sent_bytes
    through = sent.sum(axis=0) + sent.sum(axis=1)  # bytes in and out of each rank
    center = int(through.argmax())
    if not sent.sum() or through[center] < 0.9 * sent.sum():
        return None
    return Finding(
        f"rank {center}",
        "sends or receives nearly all bytes: in a ring every rank sends the same number",
        who_if_hidden="one rank",
    )


@on_each_call
def wrong_neighbor(call: Call, case: Case) -> MistakeText:
    step, side = (1, "right") if call.op == "send" else (-1, "left")
    neighbor = (call.rank + step) % case.world_size
    if not call.is_p2p or call.peer in (None, neighbor):
        return None
    verb = "sends to" if call.op == "send" else "receives from"
    sign = "+" if step > 0 else "-"
    return (
        f"{verb} the wrong neighbor: {side} is (rank {sign} 1) % world_size",
        f"{verb} rank {call.peer}, its {side} neighbor is rank {neighbor}",
    )


@on_each_call
def whole_tensors(call: Call, case: Case, attempt: Attempt) -> MistakeText:
    tensor = attempt.inputs[0]
    chunk_bytes = tensor.element_size() * max(stop - start for start, stop in bounds_in(case))
    if call.op == "send" and call.bytes >= tensor.nbytes > chunk_bytes:
        return (
            "sends whole tensors: a ring sends one chunk in each step",
            f"{call.bytes:,} bytes in one send, a chunk has {chunk_bytes:,}",
        )
    return None


def wrong_chunk(first: int, mistake: str) -> Sign:
    """A chunk that a right ring sends at another time: rank r sends chunk r + first − s in step s.

    Only for answers that send views of their tensor, N − 1 in all.
    """

    def sign(attempt: Attempt) -> Finding | None:
        bounds, n = bounds_in(attempt.case), attempt.case.world_size
        earlier = n - 1 if attempt.case.params.get("called_before") else 0
        by_rank = [
            [call for call in attempt.calls_of(rank) if call.op == "send"][earlier:]
            for rank in range(n)
        ]
        length = attempt.case.params["length"]
        if attempt.error is not None or any(
            len(sends) != n - 1 or any(call.storage_numel != length for call in sends)
            for sends in by_rank
        ):
            return None
        for sends in by_rank:
            offsets = [call.offset for call in sends if math.prod(call.shape)]
            if len(offsets) > 1 and len(set(offsets)) == 1:
                return None  # they are copied into one buffer, so their offsets say nothing
        for step in range(n - 1):
            for rank, sends in enumerate(by_rank):
                right, at = (rank + first - step) % n, sends[step].offset
                sent = (at, at + math.prod(sends[step].shape))
                if sent != bounds[right] and sent[0] < sent[1]:
                    which = f"chunk {bounds.index(sent)}" if sent in bounds else "another part"
                    evidence = f"in step {step} it sends {which}, a correct ring chunk {right}"
                    return Finding(f"rank {rank}", mistake, evidence)
        return None

    return sign


RING_SIGNS = (hub, wrong_neighbor, whole_tensors)


@on_each_rank
def modifies_bounds(output: Any) -> MistakeText:
    if output["modifies bounds"]:
        return "modifies bounds, the caller's list: only read it"
    return None


HALVES_RULES = (never_waited, modifies_bounds)


@on_each_rank
def works_on_a_copy(output: Any, expected: Any) -> MistakeText:
    wanted = expected["tensor"]
    if equal(wanted, output["returned"]) and not equal(wanted, output["tensor"]):
        return "modifies a copy: it returns the right values but leaves tensor itself unchanged"
    return None


def tensor_or_none(returned: Any) -> Plain:
    return returned if isinstance(returned, torch.Tensor) else None
