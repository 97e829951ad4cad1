"""Of each stored input a rank keeps 1/t, and gathers it again in backward.

x is equal on all ranks, as it is between the cut layers of tensor parallelism.  In a chain of
blocks all ranks have the same weights; where ranks have weights of their own, there is one block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autograder.exercise import (
    NAMED,
    SENT,
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
from autograder.exercise.process_memory import no_more_than_tensors
from autograder.exercise.signs import Said, is_over, on_each_rank
from autograder.exercises.lab09_activation_checkpointing import shared, signs
from autograder.exercises.lab09_activation_checkpointing.networks import drive
from shardlab.estimate import scatter_or_gather_sent_bytes

WITHIN = 1.02
GLOO_BYTES = 4096  # of gloo's own messages, each call
BUDGET_FROM_BYTES = 2**17
LARGE_BYTES = 2**23  # of all inputs together, from which on a process shows what it holds


def draw_chain(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same x and seed on every rank; weights the same as well, unless they are each its own."""
    x, seed = shared.draw_x(case, rng), shared.draw_seed(rng)
    weights = [shared.draw_weights(case, rng)]
    for _ in range(1, case.world_size):
        weights.append(shared.draw_weights(case, rng) if case.params["own"] else weights[0])
    return [{"weights": own, "x": x, "seed": seed} for own in weights]


# ---- budgets ------------------------------------------------------------------------------------


def padded_bytes(case: Case) -> int:
    elements = case.params["rows"] * case.params["width"]
    return int(shared.FLOAT_BYTES * (elements + -elements % case.world_size))


def all_inputs_bytes(case: Case) -> int:
    return int(case.params["blocks"] * shared.x_bytes(case))


def saved_limit(case: Case) -> Limit | None:
    """1/t of each block's input, and the output of the last, whole."""
    if shared.x_bytes(case) < BUDGET_FROM_BYTES:
        return None
    pieces = case.params["blocks"] * padded_bytes(case) / case.world_size
    return Limit(WITHIN * (pieces + shared.x_bytes(case)))


def seen_bytes(case: Case) -> float | None:
    limit = saved_limit(case) if all_inputs_bytes(case) >= LARGE_BYTES else None
    return limit and limit.most


def sent_limit(case: Case) -> Limit | None:
    """One gather of each block's input, in backward."""
    if shared.x_bytes(case) < BUDGET_FROM_BYTES:
        return None
    each = scatter_or_gather_sent_bytes(padded_bytes(case), case.world_size)
    return Limit(WITHIN * case.params["blocks"] * (each + GLOO_BYTES))


SAVED = Budget(
    "saves ≤ 1.02 × 1/t of each input, beside the last output",
    limit=saved_limit,
    used=shared.live_rise,
    heading="saved after forward",
)


# ---- signs --------------------------------------------------------------------------------------

EXCHANGES_GRADIENTS = (
    "adds up the gradient of x over the ranks: it is each rank's own, and the stored input is all "
    "that is gathered"
)


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
    if shared.FORWARD not in attempt.run.traffic:
        return None
    sent = attempt.run.traffic[shared.FORWARD].sent_by_rank[rank]
    if sent <= shared.x_bytes(attempt.case) // 8 + GLOO_BYTES:
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
    if rank not in is_over(attempt, SAVED.heading):
        return None
    if shared.live_rise(attempt.run)[rank] < 0.98 * all_inputs_bytes(attempt.case):
        return "keeps more of each input than its own 1/t"
    return (
        "keeps the whole input of each block: a piece that is a view keeps all of its tensor "
        "alive, and so does whatever else holds x"
    )


@on_each_rank
def expensive_gather(output: Any, rank: int, attempt: Attempt) -> Said:
    if rank not in is_over(attempt, SENT):
        return None
    ops = {call.op for call in attempt.run.calls}
    if ops == {"all_reduce"}:
        return "adds up pieces between zeros with all_reduce, which sends twice what a gather does"
    if "all_reduce" in ops:
        return EXCHANGES_GRADIENTS
    return "gathers more than once for each block, or more than pieces"


def chain_case(
    name: str,
    world_size: int,
    blocks: int,
    rows: int,
    width: int,
    keep: float = 1.0,
    own: bool = False,
    weight: float = 1.0,
) -> Case:
    """``own``: each rank has its own weights."""
    params = {"blocks": blocks, "rows": rows, "width": width, "keep": keep, "own": own}
    params |= {"network": "chain", "random loss": False}
    return Case(name, world_size, params, weight=weight)


EXERCISE = OnRanks(
    points=5,
    cases=(
        chain_case("2 ranks, weights of their own", 2, 1, rows=4, width=3, own=True),
        chain_case("4 ranks, 4 blocks of 128 KiB", 4, 4, rows=1024, width=32, weight=2),
        chain_case("4 ranks, dropout, 15 elements", 4, 3, rows=5, width=3, keep=0.7),
    ),
    inputs=draw_chain,
    drive=drive,
    tolerance=shared.NEAR,
    budgets=(
        SAVED,
        no_more_than_tensors(shared.FORWARD, seen_bytes, before=shared.BEFORE),
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
