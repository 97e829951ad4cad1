"""A rank keeps 1/t of each stored input, and gathers the whole input in backward.

x is equal on all ranks, as it is between tensor-parallel layers.  In a chain of blocks all ranks
have the same weights; if weights differ between ranks, there is only one block.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from autograder.exercise import (
    NAMED_MISTAKES,
    Attempt,
    Budget,
    Case,
    Finding,
    Limit,
    OnRanks,
    Plain,
    sent_bytes,
)
from autograder.exercise.signs import (
    MistakeText,
    never_waited,
    on_each_call,
    over_budget,
)
from autograder.exercises.lab10_activation_checkpointing import shared, signs
from autograder.exercises.lab10_activation_checkpointing.networks import drive
from shardlab.errors import RankError
from shardlab.estimate import scatter_or_gather_sent_bytes
from shardlab.run import Call

GLOO_BYTES = 4096  # gloo's overhead for each call


def draw_chain(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same x and seed on every rank, and the same weights unless the case says "own"."""
    x, seed = shared.draw_x(case, rng), int(rng.integers(1, 2**31))
    weights = [shared.draw_weights(case, rng)]
    for _ in range(1, case.world_size):
        weights.append(shared.draw_weights(case, rng) if case.params.get("own") else weights[0])
    return [{"weights": own, "x": x, "seed": seed} for own in weights]


def padded_bytes(case: Case) -> int:
    elements = math.prod(shared.shape_of(case))
    padded = elements + -elements % case.world_size
    return padded * shared.dtype_of(case).itemsize


def pieces_bytes(case: Case) -> float:
    """1/t of each block's input, and the whole output of the last block."""
    pieces = case.params["blocks"] * padded_bytes(case) / case.world_size
    return float(pieces + shared.x_bytes(case))


def sent_limit(case: Case) -> Limit | None:
    """One gather of each block's input, in backward; who sends less keeps more of it."""
    if shared.x_bytes(case) < shared.BUDGET_FROM_BYTES:
        return None
    each = scatter_or_gather_sent_bytes(padded_bytes(case), case.world_size)
    blocks = case.params["blocks"]
    # As in ZeRO (lab04_zero.shared.traffic), no rank can send much less than the others.
    return Limit(1.02 * blocks * (each + GLOO_BYTES), 0.9 * blocks * each)


def unequal_pieces(attempt: Attempt) -> Finding | None:
    """An error, and ranks whose first gathers take tensors of different sizes."""
    first: dict[int, int] = {}
    for call in attempt.calls:
        if call.op.startswith("all_gather"):
            first.setdefault(call.rank, call.bytes)
    if attempt.error is None or len(set(first.values())) < 2:
        return None
    mistake = "gathers pieces of unequal length: pad x with zeros until they are equal"
    sizes = ", ".join(f"rank {rank} {size:,} B" for rank, size in sorted(first.items()))
    return Finding("your answer", mistake, sizes, who_if_hidden="your answer")


def calls_in_forward(attempt: Attempt) -> Finding | None:
    """From the calls, not the bytes: a barrier sends hardly any."""
    run = attempt.run
    if run is None or all(block.label != shared.FORWARD for block in run.traffic.blocks):
        return None
    for rank in range(run.world_size):
        for call in run.calls_in(shared.FORWARD, rank):
            mistake = (
                "communicates in forward: x is equal on all ranks, so each can cut out its piece "
                "without communication; gather in backward"
            )
            return Finding(f"rank {rank}", mistake, f"{call.op}, {call.source}")
    return None


@on_each_call
def calls_a_barrier(call: Call) -> MistakeText:
    if call.op != "barrier":
        return None
    return (
        "calls a barrier: an all-gather already waits for what it needs of the others, and a "
        "barrier makes every rank wait for the slowest"
    )


def sends_objects(attempt: Attempt) -> Finding | None:
    """A pickled object is sent as uint8, right after its length from the same line."""
    last: dict[int, Call] = {}
    for call in attempt.calls:
        before = last.get(call.rank)
        last[call.rank] = call
        if call.dtype != "uint8" or before is None or before.dtype != "int64":
            continue
        if before.source == call.source and before.op == call.op:
            mistake = (
                "sends pickled objects, and their lengths before them: gather the tensor itself, "
                "with all_gather_single"
            )
            evidence = f"{call.bytes:,} bytes of uint8, {call.source}"
            return Finding(f"rank {call.rank}", mistake, evidence)
    return None


@on_each_call
def gathers_otherwise(call: Call) -> MistakeText:
    """All-reduces, barriers and pickled objects have texts of their own."""
    if call.op.startswith("all_gather") or call.op in ("all_reduce", "barrier"):
        return None
    return f"calls {call.op}: gather each stored input with one all-gather, and call nothing else"


@on_each_call
def calls_all_reduce(call: Call) -> MistakeText:
    if call.op != "all_reduce":
        return None
    return (
        "calls all_reduce: gather the stored input with an all-gather, which sends half as much, "
        "and return each rank's own gradient of x"
    )


def gathers_in_the_background(attempt: Attempt) -> Finding | None:
    """A gather that nobody waits for may write into x while the function runs on it, which autograd
    notices or not."""
    error, run = attempt.error, attempt.run
    if not isinstance(error, RankError) or run is None:
        return None
    if "modified by an inplace operation" not in error.message:
        return None
    calls = [call for call in run.calls if call.rank == error.rank]
    return never_waited(replace(attempt, run=replace(run, calls=calls)))


EXERCISE = OnRanks(
    points=5,
    cases=(  # "own": weights differ between ranks
        shared.blocks_case(
            "2 ranks, different weights, float64", 2, 1, rows=4, width=3, own=True, dtype="float64"
        ),
        shared.blocks_case(
            "4 ranks, 4 blocks of 132 KiB", 4, 4, samples=5, rows=205, width=33, weight=2
        ),
        shared.blocks_case(
            "4 ranks, dropout, 5 elements",
            4,
            2,
            rows=1,
            width=5,
            keep=0.7,
            order=(0, 1, 0),
            dtype="bfloat16",
        ),
    ),
    inputs=draw_chain,
    drive=drive,
    tolerance=shared.TOLERANCE,
    budgets=(
        *shared.kept_after_forward(
            "saves ≤ 1.02 × 1/t of each padded input, and the last output", pieces_bytes
        ),
        Budget("sends ≤ 1.02 × ideal bytes per rank", sent_bytes, sent_limit),
    ),
    rules=(calls_in_forward, calls_a_barrier, sends_objects, gathers_otherwise, never_waited),
    signs=(
        unequal_pieces,
        gathers_in_the_background,
        signs.wrong_form,
        signs.runs_again_without_autograd,
        signs.runs_again_differently,
        calls_all_reduce,
        NAMED_MISTAKES,
        over_budget(
            shared.KEPT,
            "keeps more than 1/t of each input: a view, for example, keeps its whole tensor alive, "
            "and so does any other reference to x",
        ),
    ),
    memory=True,
)
