"""Shared by the activation checkpointing exercises: blocks that log their runs, and a step of them.

A block is a function of x [B, D] with its own weights: D to 4·D, tanh, dropout, back to D.  Its
dropout uses torch.rand, whose numbers are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint as torch_checkpoint
from torch import Tensor

from autograder.exercise import Budget, Case, Limit, Plain
from autograder.exercise.process_memory import process_memory_budget
from autograder.guest.closed_modules import close_functions

NEAR = 1e-5  # matmuls differ by up to this between machines; on one machine they are bit-equal
WIDER = 4
FLOAT_BYTES = 4
BUDGET_FROM_BYTES = 2**16  # of x; below this, scalars would use up most of a budget
SAMPLES = 64  # elements of a large tensor that are also compared outside the rank
VALUES = ("outputs", "gradients of arguments", "gradients of weights")
BEFORE, FORWARD = "before forward", "forward of the network"
KEPT = "kept after forward"  # heading of the budget

Log = list[dict[str, Any]]  # each run of a block: "block", "grad" (was autograd on?), "mask"
Block = Callable[[Tensor], Tensor]
Blocks = list[Block]


def blocks_case(
    name: str, world_size: int, blocks: int, rows: int = 3, width: int = 4, **others: Any
) -> Case:
    """x has ``rows`` and ``width``; dropout keeps each element with probability ``keep``."""
    weight = others.pop("weight", 1.0)
    params = {"blocks": blocks, "rows": rows, "width": width, "keep": 1.0} | others
    return Case(name, world_size, params, weight=weight)


def draw_weights(case: Case, rng: np.random.Generator) -> list[list[Tensor]]:
    """[[up [D, 4·D], down [4·D, D]], …], one pair for each block."""
    width = case.params["width"]
    shapes = [(width, WIDER * width), (WIDER * width, width)]
    return [
        [torch.from_numpy(rng.standard_normal(of) / of[0] ** 0.5).float() for of in shapes]
        for _ in range(case.params["blocks"])
    ]


def draw_x(case: Case, rng: np.random.Generator) -> Tensor:
    shape = (case.params["rows"], case.params["width"])
    return torch.from_numpy(rng.standard_normal(shape)).float()


def block_of(up: Tensor, down: Tensor, number: int, keep: float, log: Log) -> Block:
    def block(x: Tensor) -> Tensor:
        hidden = torch.tanh(x @ up)
        run: dict[str, Any] = {"block": number, "grad": torch.is_grad_enabled(), "mask": 0.0}
        if keep < 1:
            mask = torch.rand(hidden.shape) < keep
            # A fingerprint of the mask; numpy arrays are not counted as tensors.
            places = np.sqrt(np.arange(1.0, mask.numel() + 1))
            run["mask"] = float(places[mask.numpy().ravel()].sum())
            hidden = hidden * mask / keep
        log.append(run)
        return hidden @ down

    return block


def step(
    network: Callable[[Blocks, list[Tensor], Any, Case], list[Tensor]],
    given: Any,
    case: Case,
    loss_of: Callable[[Tensor], Tensor] = lambda y: y.square().sum(),
    around: Callable[[str], AbstractContextManager[Any]] = nullcontext,
    saving: Callable[[list[Tensor]], AbstractContextManager[Any]] = nullcontext,
) -> dict[str, Any]:
    """Forward and backward; restores the random state.

    ``around(label)``, such as `measure`, wraps a part; ``saving(weights)`` wraps the whole step.
    """
    log: Log = []
    weights = [weight.clone().requires_grad_() for pair in given["weights"] for weight in pair]
    pairs = zip(weights[::2], weights[1::2], strict=True)
    blocks = [block_of(*pair, i, case.params["keep"], log) for i, pair in enumerate(pairs)]
    arguments = [given[name].clone().requires_grad_() for name in ("x", "other") if name in given]
    with torch.random.fork_rng(devices=[]), saving(weights) as saved:
        torch.manual_seed(given["seed"])
        with around(BEFORE):
            pass
        with around(FORWARD):
            outputs = network(blocks, arguments, given, case)
        first_runs = len(log)
        losses = [loss_of(y) for y in outputs if y.is_floating_point()]
        sum(losses[1:], losses[0]).backward()
        next_draw = torch.rand(4)
    found = {"next draw": next_draw, "log": log, "again": log[first_runs:], "saved": saved}
    gradients = [  # an unused leaf may have None or zeros
        [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
        for leaves in (arguments, weights)
    ]
    return found | dict(zip(VALUES, (outputs, *gradients), strict=True))


def results(ran: dict[str, Any], case: Case) -> dict[str, Plain]:
    """Evenly spaced elements of each tensor, about SAMPLES; "runs": how often each block ran."""
    blocks = [run["block"] for run in ran["log"]]
    samples: dict[str, Plain] = {
        name: [t.detach().flatten()[:: max(1, t.numel() // SAMPLES)].clone() for t in ran[name]]
        for name in VALUES
    }
    runs = [blocks.count(number) for number in range(case.params["blocks"])]
    return samples | {"next draw": ran["next draw"], "runs": runs}


def same_bits(ours: dict[str, Any], plain: dict[str, Any]) -> bool:
    pairs = [pair for name in VALUES for pair in zip(ours[name], plain[name], strict=True)]
    return all(torch.equal(*pair) for pair in pairs)


def close_torchs_own() -> None:
    """From now on torch's own checkpoint raises. The module's other functions stay open."""
    generator: Any = torch_checkpoint._checkpoint_without_reentrant_generator
    forward: Any = torch_checkpoint.CheckpointFunction.forward
    close_functions([generator, forward], "torch.utils.checkpoint")


def x_bytes(case: Case) -> int:
    """Of x, and of each block's output."""
    return int(FLOAT_BYTES * case.params["rows"] * case.params["width"])


def live_rise(run: Any) -> list[int]:
    """By rank: live bytes after forward minus those before it."""
    ends = [[sum(rank.at(label).values()) for label in (BEFORE, FORWARD)] for rank in run.memory]
    return [max(0, after - before) for before, after in ends]


def kept_after_forward(label: str, tensors_bytes: Callable[[Case], float]) -> tuple[Budget, Budget]:
    """A budget of live bytes; and in large cases, one of process memory."""

    def limit(case: Case) -> Limit | None:
        is_small = x_bytes(case) < BUDGET_FROM_BYTES
        return None if is_small else Limit(1.02 * tensors_bytes(case))

    def process_bytes(case: Case) -> float | None:
        return 1.02 * tensors_bytes(case) if case.params.get("large") else None

    of_process = process_memory_budget(FORWARD, process_bytes, before=BEFORE)
    return Budget(label, live_rise, limit, heading=KEPT), of_process
