"""Lab 09, partitioned_checkpoint: of each stored input a rank keeps 1/t, and gathers it again.

x is equal on all ranks, as it is between the cut layers of tensor parallelism.  In a chain of
blocks all ranks have the same weights; where ranks have weights of their own, there is one block.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from autograder.exercise import SENT, Attempt, Budget, Case, Exercise, Finding, Plain
from autograder.exercise.compare import equal
from autograder.exercises.checkpoint_function import plainly
from autograder.exercises.checkpoint_mistakes import (
    adds_twice,
    lacks_gradients,
    leaves_the_generator,
    runs_in_vain,
    wrong_form,
)
from autograder.exercises.checkpointing import (
    FLOAT_BYTES,
    NEAR,
    Log,
    blocks_of,
    calls_torchs_own,
    draw_seed,
    draw_weights,
    draw_x,
    drawing_from,
    draws_anew,
    everyone,
    finished,
    leaves,
    rise,
    runs_of,
    same_bits,
    samples,
    without_torchs_own,
)
from autograder.exercises.private import no_more_than_tensors
from shardlab import measure
from shardlab.estimate import scatter_or_gather_sent_bytes

BEFORE, FORWARD, BACKWARD = "before forward", "forward of the chain", "backward of the chain"
WITHIN = 1.02
GLOO_BYTES = 4096  # of gloo's own messages, each call
BUDGET_FROM_BYTES = 2**17
LARGE_BYTES = 2**23  # of all inputs together, from which on a process shows what it holds


def draw_chain(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same x and seed on every rank; weights the same as well, unless they are each its own."""
    ranks = range(case.world_size)
    x, seed, weights = draw_x(case, rng), draw_seed(rng), draw_weights(case, rng)
    own = [draw_weights(case, rng) if case.params["own"] and rank else weights for rank in ranks]
    return [{"weights": own[rank], "x": x, "seed": seed} for rank in ranks]


# ---- a case -------------------------------------------------------------------------------------


def run_chain(
    checkpoint: Callable[..., Any],
    given: Any,
    case: Case,
    mark: Callable[[str], Any] = nullcontext,
) -> dict[str, Any]:
    log: Log = []
    pairs = leaves(given["weights"])
    x = given["x"].clone().requires_grad_()
    y = x
    with drawing_from(given["seed"]):
        with mark(BEFORE):
            pass
        with mark(FORWARD):
            for block in blocks_of(pairs, case.params["keep"], log):
                y = checkpoint(block, y)
        with mark(BACKWARD):
            y.square().sum().backward()
        next_draw = torch.rand(4)
    inputs = [x, *(weight for pair in pairs for weight in pair)]
    return {
        "outputs": [y],
        "gradients": [torch.zeros_like(t) if t.grad is None else t.grad for t in inputs],
        "has none": [t.grad is None for t in inputs],
        "next draw": next_draw,
        "log": log,
    }


def drive_partitioned(subject: Callable[..., Any], given: Any, case: Case) -> Plain:
    with without_torchs_own():
        ours = run_chain(subject, given, case, measure)
    plain = run_chain(plainly, given, case)
    both = [[*ran["outputs"], *ran["gradients"]] for ran in (ours, plain)]
    evidence = {name: ours[name] for name in ("has none", "log")}
    return told(ours) | {"bit for bit": same_bits(*both), **evidence}


def told(ran: dict[str, Any]) -> dict[str, Plain]:
    return {
        "outputs": samples(ran["outputs"]),
        "gradients": samples(ran["gradients"]),
        "next draw": ran["next draw"],
        "runs": runs_of(ran["log"]),
    }


def expect_partitioned(case: Case, inputs: Any) -> list[Plain]:
    runs = [2] * case.params["blocks"]
    return [
        told(run_chain(plainly, given, case)) | {"runs": runs, "bit for bit": True}
        for given in inputs
    ]


# ---- budgets ------------------------------------------------------------------------------------


def input_bytes(case: Case) -> int:
    return int(FLOAT_BYTES * case.params["rows"] * case.params["width"])


def padded_bytes(case: Case) -> int:
    elements = input_bytes(case) // FLOAT_BYTES
    return FLOAT_BYTES * (elements + -elements % case.world_size)


def saved_limit(case: Case) -> list[float] | None:
    """1/t of each block's input, and the output of the last, whole."""
    if input_bytes(case) < BUDGET_FROM_BYTES:
        return None
    pieces = case.params["blocks"] * padded_bytes(case) / case.world_size
    return [WITHIN * (pieces + input_bytes(case))] * case.world_size


def saved_bytes(case: Case) -> float | None:
    limit = saved_limit(case)
    return limit[0] if limit and case.params["blocks"] * input_bytes(case) >= LARGE_BYTES else None


def sent_limit(case: Case) -> list[float] | None:
    """One gather of each block's input, in backward."""
    if input_bytes(case) < BUDGET_FROM_BYTES:
        return None
    each = scatter_or_gather_sent_bytes(padded_bytes(case), case.world_size)
    return [WITHIN * case.params["blocks"] * (each + GLOO_BYTES)] * case.world_size


# ---- mistakes by their names --------------------------------------------------------------------


def gathers_early(attempt: Attempt) -> Finding | None:
    """Whether a rank sent anything but a few bytes in forward."""
    run = attempt.run
    if run is None or attempt.error or FORWARD not in run.traffic:
        return None
    if max(run.traffic[FORWARD].sent_by_rank) > input_bytes(attempt.case) // 8 + GLOO_BYTES:
        return everyone(
            "exchanges in forward already: x is equal on all ranks, so each keeps its piece "
            "without a word, and gathers in backward"
        )
    return None


def saves_it_whole(attempt: Attempt) -> Finding | None:
    over = [s for s in attempt.spent if s.ranks_over and s.heading == SAVED.heading]
    if attempt.error or not over:
        return None
    blocks = attempt.case.params["blocks"]
    rank = over[0].ranks_over[0]
    if over[0].used[rank] >= 0.98 * blocks * input_bytes(attempt.case):
        return everyone(
            "keeps the whole input of each block: a piece that is a view keeps all of its tensor "
            "alive, and so does whatever else holds x"
        )
    return everyone("keeps more of each input than its own 1/t")


def no_piece_for_everyone(attempt: Attempt) -> Finding | None:
    """Stops where the elements do not divide by the number of ranks."""
    elements = input_bytes(attempt.case) // FLOAT_BYTES
    if attempt.error and elements % attempt.case.world_size and not stopped_in_forward(attempt):
        return everyone(
            "makes pieces of unequal length: pad x with zeros until they are equal, and cut the "
            "padding off after the gather"
        )
    return None


def stopped_in_forward(attempt: Attempt) -> bool:
    """Before anything was sent or received: for another reason."""
    return attempt.run is None or not attempt.run.calls


EXCHANGES_GRADIENTS = (
    "adds up the gradient of x over the ranks: it is each rank's own, and the stored input is all "
    "that is gathered"
)


def dear_gather(attempt: Attempt) -> Finding | None:
    over = any(spent.ranks_over and spent.heading == SENT for spent in attempt.spent)
    if attempt.run is None or attempt.error or not over:
        return None
    ops = {call.op for call in attempt.run.calls}
    if ops == {"all_reduce"}:
        return everyone(
            "adds up pieces between zeros with all_reduce, which sends twice what a gather does"
        )
    if "all_reduce" in ops:
        return everyone(EXCHANGES_GRADIENTS)
    return everyone("gathers more than once for each block, or more than pieces")


def shares_gradients(attempt: Attempt) -> Finding | None:
    """Where ranks have weights of their own, x's gradient is each rank's own as well."""
    outputs = finished(attempt)
    if not outputs or not attempt.case.params["own"]:
        return None
    total = torch.stack([wanted["gradients"][0] for wanted in attempt.expected]).sum(dim=0)
    for number in (total, total / len(outputs)):
        if all(equal(number, output["gradients"][0], NEAR) for output in outputs):
            return everyone(EXCHANGES_GRADIENTS)
    return None


def in_another_order(attempt: Attempt) -> Finding | None:
    """y is right, and gradients are those of another x: pieces that were put together wrongly."""
    for output, wanted in zip(finished(attempt), attempt.expected, strict=False):
        right = equal(wanted["outputs"], output["outputs"], NEAR)
        if right and not output["bit for bit"]:
            return everyone(
                "runs the function again on another x than in forward: are the pieces in the order "
                "of the ranks, the padding cut off, the shape as before?"
            )
    return None


def chain_case(
    name: str,
    world_size: int,
    blocks: int,
    rows: int,
    width: int,
    keep: float = 1.0,
    own: bool = False,
    hidden: bool = False,
    weight: float = 1.0,
) -> Case:
    """``own``: each rank has its own weights."""
    params = {"blocks": blocks, "rows": rows, "width": width, "keep": keep, "own": own}
    return Case(name, world_size, params, hidden, weight)


SAVED = Budget(
    "saves ≤ 1.02 × 1/t of each input, beside the last output",
    limit=saved_limit,
    used=lambda run: rise(run, BEFORE, FORWARD),
    heading="saved after forward",
)
SEEN = no_more_than_tensors(FORWARD, saved_bytes, before=BEFORE)

PARTITIONED_CHECKPOINT = Exercise(
    name="activation_checkpointing.partitioned_checkpoint",
    points=5,
    cases=(
        chain_case("2 ranks, weights of their own", 2, 1, rows=4, width=3, own=True),
        chain_case("4 ranks, 4 blocks of 128 KiB", 4, 4, rows=1024, width=32, weight=2),
        chain_case("4 ranks, dropout, 15 elements", 4, 3, rows=5, width=3, keep=0.7),
        chain_case("3 ranks, weights of their own", 3, 1, rows=2, width=5, own=True, hidden=True),
        chain_case(
            "2 ranks, 14 blocks of 1 MiB",
            2,
            *(14, 32_768, 8),
            keep=0.9,
            hidden=True,
            weight=2,
        ),
    ),
    draw=draw_chain,
    drive=drive_partitioned,
    expect=expect_partitioned,
    tolerance=NEAR,
    budgets=(
        SAVED,
        SEEN,
        Budget(
            "sends ≤ 1.02 × ideal bytes per rank",
            limit=sent_limit,
            used=lambda run: run.traffic.sent_by_rank.tolist(),
        ),
    ),
    diagnoses=(
        calls_torchs_own,
        no_piece_for_everyone,
        wrong_form,
        gathers_early,
        runs_in_vain,
        lacks_gradients,
        draws_anew,
        shares_gradients,
        adds_twice,
        leaves_the_generator,
        in_another_order,
        saves_it_whole,
        dear_gather,
    ),
    memory=True,
)
