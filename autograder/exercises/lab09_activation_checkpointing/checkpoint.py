"""Lab 09, checkpoint: an autograd.Function that keeps its inputs and runs the function again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autograder.exercise import Budget, Case, Exercise, Plain
from autograder.exercises.checkpoint_mistakes import (
    adds_twice,
    keeps_a_graph,
    lacks_gradients,
    leaves_the_generator,
    off_by_bits,
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
    leaves,
    rise,
    runs_of,
    same_bits,
    samples,
    without_torchs_own,
)
from autograder.exercises.private import no_more_than_tensors
from shardlab import measure

BEFORE, AFTER = "before forward", "after forward"
STATE_BYTES = 8192  # of the random numbers, for each call of checkpoint; torch's has 5,056
WITHIN = 1.02
SMALL_ROWS = 64  # below, a budget of bytes would be one of scalars
LARGE_ROWS = 10_000  # from here on a process shows what it holds

Checkpointer = Callable[..., Any]
Ends = list[Tensor]  # x and another like it, both leaves


def plainly(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def draw_network(case: Case, rng: np.random.Generator) -> list[Plain]:
    x = draw_x(case, rng)
    mask = torch.from_numpy(rng.random(x.shape) < 0.7).float()
    return [
        {
            "weights": draw_weights(case, rng),
            "x": x,
            "other": draw_x(case, rng),
            "mask": mask,
            "scale": float(rng.uniform(0.5, 2)),
            "seed": draw_seed(rng),
        }
    ]


# ---- networks: what is called through the student's checkpoint ----------------------------------


def chain(
    checkpoint: Checkpointer, blocks: list[Any], given: Any, ends: Ends, case: Case
) -> list[Any]:
    x = ends[0]
    for block in blocks:
        x = checkpoint(block, x)
    return [x]


def nested(
    checkpoint: Checkpointer, blocks: list[Any], given: Any, ends: Ends, case: Case
) -> list[Any]:
    """All blocks in one checkpoint, and all but the first in another within it."""

    def inner(x: Tensor) -> Tensor:
        for block in blocks[1:]:
            x = block(x)
        return x

    def outer(x: Tensor) -> Tensor:
        return checkpoint(inner, blocks[0](x))

    return [checkpoint(outer, ends[0])]


def several(
    checkpoint: Checkpointer, blocks: list[Any], given: Any, ends: Ends, case: Case
) -> list[Any]:
    """Tensors with and without gradients, a number, a word and None; out come two and an index."""

    def mixed(x: Tensor, scale: float, mask: Tensor, how: str, y: Tensor, nothing: None) -> Any:
        if nothing is not None or how != "add":
            raise ValueError("arguments should reach the function as they were given")
        first = blocks[0](x * mask) * scale
        second = blocks[1](y) + torch.sigmoid(x)
        return first, second, first.argmax(dim=1)

    args = (ends[0], given["scale"], given["mask"], "add", ends[1], None)
    first, second, index = checkpoint(mixed, *args)
    return [second, index] if case.params["one unused"] else [first, second, index]


NETWORKS = {"chain": chain, "nested": nested, "several": several}


# ---- a case -------------------------------------------------------------------------------------


def run_network(
    checkpoint: Checkpointer, given: Any, case: Case, mark: Callable[[str], Any] = nullcontext
) -> dict[str, Any]:
    """Forward and backward: outputs, gradients, each run of a block, and what rand gives next."""
    log: Log = []
    pairs = leaves(given["weights"])
    blocks = blocks_of(pairs, case.params["keep"], log)
    ends = [given["x"].clone().requires_grad_(), given["other"].clone().requires_grad_()]
    with drawing_from(given["seed"]):
        with mark(BEFORE):
            pass
        outputs = NETWORKS[case.params["network"]](checkpoint, blocks, given, ends, case)
        with mark(AFTER):
            pass
        if case.params["keep"] < 1:  # as a loss with dropout of its own would
            torch.rand(4)
        losses = [y.square().sum() for y in outputs if y.is_floating_point()]
        sum(losses[1:], losses[0]).backward()
        next_draw = torch.rand(4)
    inputs = ends + [tensor for pair in pairs for tensor in pair]
    return {
        "outputs": outputs,
        # What nothing hangs on may have no gradient, or zeros.
        "gradients": [torch.zeros_like(t) if t.grad is None else t.grad for t in inputs],
        "has none": [t.grad is None for t in inputs],
        "next draw": next_draw,
        "log": log,
    }


def drive_checkpoint(subject: Checkpointer, given: Any, case: Case) -> Plain:
    with without_torchs_own():
        ours = run_network(subject, given, case, measure)
    plain = run_network(plainly, given, case)
    both = [[*ran["outputs"], *ran["gradients"]] for ran in (ours, plain)]
    return told(ours) | {"bit for bit": same_bits(*both), **evidence(ours)}


def evidence(ran: dict[str, Any]) -> dict[str, Plain]:
    return {name: ran[name] for name in ("has none", "log")}


def told(ran: dict[str, Any]) -> dict[str, Plain]:
    return {
        "outputs": samples(ran["outputs"]),
        "gradients": samples(ran["gradients"]),
        "next draw": ran["next draw"],
        "runs": runs_of(ran["log"]),
    }


def expect_checkpoint(case: Case, inputs: Any) -> list[Plain]:
    right = told(run_network(plainly, inputs[0], case))
    runs = [2] * case.params["blocks"]
    if case.params["network"] == "nested":  # in forward, as part of the outer, by itself
        runs[1:] = [3] * (len(runs) - 1)
    return [right | {"runs": runs, "bit for bit": True}]


# ---- bytes --------------------------------------------------------------------------------------


def kept_limit(case: Case) -> list[float] | None:
    """A tensor of x's size for each block: its input, and for the last one the output."""
    rows = case.params["rows"]
    if rows < SMALL_ROWS:
        return None
    of_x = FLOAT_BYTES * rows * case.params["width"]
    calls = case.params["blocks"] if case.params["network"] == "chain" else 1
    return [WITHIN * calls * (of_x + STATE_BYTES)]


INPUTS_ALONE = Budget(
    "keeps ≤ 1.02 × one tensor of x's size, and 8 kB, for each call",
    limit=kept_limit,
    used=lambda run: rise(run, BEFORE, AFTER),
    heading="kept after forward",
)


def kept_bytes(case: Case) -> float | None:
    limit = kept_limit(case)
    return limit[0] if limit and case.params["rows"] >= LARGE_ROWS else None


SEEN = no_more_than_tensors(AFTER, kept_bytes, before=BEFORE)


def network_case(
    name: str,
    network: str,
    blocks: int,
    rows: int = 3,
    width: int = 4,
    keep: float = 1.0,
    one_unused: bool = False,
    hidden: bool = False,
    weight: float = 1.0,
) -> Case:
    """``one_unused``: the loss does without one of several outputs."""
    params = {"network": network, "blocks": blocks, "rows": rows, "width": width, "keep": keep}
    params["one unused"] = one_unused
    return Case(name, 1, params, hidden, weight)


CHECKPOINT = Exercise(
    name="activation_checkpointing.checkpoint",
    points=6,
    cases=(
        network_case("a chain of 4, 64 KiB each", "chain", 4, rows=256, width=64),
        network_case("a chain of 3 with dropout", "chain", 3, rows=5, keep=0.7),
        network_case("several of everything", "several", 2),
        network_case("nested, with dropout", "nested", 3, keep=0.8),
        network_case(
            "several, dropout, one not used",
            "several",
            2,
            width=6,
            keep=0.6,
            one_unused=True,
            hidden=True,
        ),
        network_case(
            "nested, 1 MiB with dropout", "nested", 4, rows=16_384, width=16, keep=0.9, hidden=True
        ),
    ),
    draw=draw_network,
    drive=drive_checkpoint,
    expect=expect_checkpoint,
    tolerance=NEAR,
    budgets=(INPUTS_ALONE, SEEN),
    allows=frozenset(),
    diagnoses=(
        calls_torchs_own,
        wrong_form,
        runs_in_vain,
        keeps_a_graph,
        lacks_gradients,
        draws_anew,
        leaves_the_generator,
        adds_twice,
        off_by_bits,
    ),
    memory=True,
)
