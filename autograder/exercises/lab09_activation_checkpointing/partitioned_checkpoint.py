"""Of each stored input a rank keeps 1/t, and gathers it again in backward.

x is equal on all ranks, as it is between the cut layers of tensor parallelism.  In a chain of
blocks all ranks have the same weights; where ranks have weights of their own, there is one block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autograder.exercise import (
    NAMED,
    Attempt,
    Budget,
    Case,
    Finding,
    Limit,
    OnRanks,
    Plain,
    equal,
    sent_bytes,
)
from autograder.exercise.signs import Said, is_over, on_each_rank
from autograder.exercises.lab09_activation_checkpointing import shared, signs
from autograder.exercises.lab09_activation_checkpointing.networks import drive
from shardlab.estimate import scatter_or_gather_sent_bytes

GLOO_BYTES = 4096  # of gloo's own messages, each call
EXCHANGES_GRADIENTS = (
    "adds up the gradient of x over the ranks: it is each rank's own, and the stored input is all "
    "that is gathered"
)


def draw_chain(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same x and seed on every rank; weights the same as well, unless they are each its own."""
    x, seed = shared.draw_x(case, rng), int(rng.integers(1, 2**31))
    weights = [shared.draw_weights(case, rng)]
    for _ in range(1, case.world_size):
        weights.append(shared.draw_weights(case, rng) if case.params.get("own") else weights[0])
    return [{"weights": own, "x": x, "seed": seed} for own in weights]


def padded_bytes(case: Case) -> int:
    elements = case.params["rows"] * case.params["width"]
    return int(shared.FLOAT_BYTES * (elements + -elements % case.world_size))


def pieces_bytes(case: Case) -> float:
    """1/t of each block's input, and the output of the last, whole."""
    pieces = case.params["blocks"] * padded_bytes(case) / case.world_size
    return float(pieces + shared.x_bytes(case))


def sent_limit(case: Case) -> Limit | None:
    """One gather of each block's input, in backward."""
    if shared.x_bytes(case) < shared.BUDGET_FROM_BYTES:
        return None
    each = scatter_or_gather_sent_bytes(padded_bytes(case), case.world_size)
    return Limit(1.02 * case.params["blocks"] * (each + GLOO_BYTES))


def no_piece_for_everyone(attempt: Attempt) -> Finding | None:
    """Stops where elements do not divide by the ranks, and not before anything was sent."""
    case, run = attempt.case, attempt.run
    divides = case.params["rows"] * case.params["width"] % case.world_size == 0
    if attempt.error is None or divides or run is None or not run.calls:
        return None
    mistake = (
        "makes pieces of unequal length: pad x with zeros until they are equal, and cut the "
        "padding off after the gather"
    )
    return Finding("your answer", mistake, anyone="your answer")


@on_each_rank
def gathers_early(output: Any, rank: int, attempt: Attempt) -> Said:
    """Whether a rank sent anything but a few bytes in forward."""
    run, few_bytes = attempt.run, shared.x_bytes(attempt.case) // 8 + GLOO_BYTES
    if run is None or run.traffic[shared.FORWARD].sent_by_rank[rank] <= few_bytes:
        return None
    return (
        "exchanges in forward already: x is equal on all ranks, so each cuts out its piece "
        "without communication, and gathers in backward"
    )


@on_each_rank
def in_another_order(output: Any, rank: int, attempt: Attempt) -> Said:
    """y is right, and gradients are those of another x: pieces that were put together wrongly."""
    right = equal(attempt.expected[rank]["outputs"], output["outputs"], shared.NEAR)
    if output["bit for bit"] or not right:
        return None
    return (
        "runs the function again on another x than in forward: are the pieces in the order of the "
        "ranks, the padding cut off, the shape as before?"
    )


@on_each_rank
def saves_it_whole(output: Any, rank: int, attempt: Attempt) -> Said:
    if rank not in is_over(attempt, shared.KEPT):
        return None
    whole_bytes = attempt.case.params["blocks"] * shared.x_bytes(attempt.case)
    if shared.live_rise(attempt.run)[rank] < 0.98 * whole_bytes:
        return "keeps more of each input than its own 1/t"
    return (
        "keeps the whole input of each block: a piece that is a view keeps all of its tensor "
        "alive, and so does whatever else holds x"
    )


@on_each_rank
def expensive_gather(output: Any, rank: int, attempt: Attempt) -> Said:
    if rank not in is_over(attempt):
        return None
    ops = {call.op for call in attempt.run.calls} if attempt.run else set()
    if ops == {"all_reduce"}:
        return "adds up pieces between zeros with all_reduce, which sends twice what a gather does"
    if "all_reduce" in ops:
        return EXCHANGES_GRADIENTS
    return "gathers more than once for each block, or more than pieces"


EXERCISE = OnRanks(
    points=5,
    cases=(  # "own": each rank has its own weights
        shared.blocks_case("2 ranks, weights of their own", 2, 1, rows=4, width=3, own=True),
        shared.blocks_case("4 ranks, 4 blocks of 128 KiB", 4, 4, rows=1024, width=32, weight=2),
        shared.blocks_case("4 ranks, dropout, 15 elements", 4, 3, rows=5, width=3, keep=0.7),
    ),
    inputs=draw_chain,
    drive=drive,
    tolerance=shared.NEAR,
    budgets=(
        *shared.kept_after_forward(
            "saves ≤ 1.02 × 1/t of each input, and the last output", pieces_bytes
        ),
        Budget("sends ≤ 1.02 × ideal bytes per rank", sent_bytes, sent_limit),
    ),
    signs=(
        no_piece_for_everyone,
        signs.wrong_form,
        gathers_early,
        signs.runs_in_vain,
        signs.draws_anew,
        NAMED,
        signs.leaves_the_generator,
        in_another_order,
        saves_it_whole,
        expensive_gather,
    ),
    memory=True,
)
