"""Shared by the activation checkpointing exercises: blocks that log their runs, and a step of them.

A block is a function of x [rows, D] with its own weights: D to 4·D, tanh, dropout, back to D.  Its
dropout uses torch.rand, whose numbers are the same on every machine.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint as torch_checkpoint
from torch import Tensor

from autograder.exercise import Budget, Case, Limit, Plain
from autograder.exercise.process_memory import process_memory_budget
from autograder.guest.closed_modules import close_functions

TOLERANCE = 1e-5  # matmuls differ by up to this between machines; on one machine they are bit-equal
WIDER = 4
BUDGET_FROM_BYTES = 2**16  # of x; below this, scalars would use up most of a budget
SAMPLES = 64  # elements of a large tensor that are also compared outside the rank
LOGGED_ELEMENTS = 2**16  # of an x that is logged
VALUES = ("outputs", "gradients of arguments", "gradients of weights")
STATE, NEXT = "random state after forward", "random numbers after backward"
RUNS, BITS = "runs of each block", "bit-equal to the step without checkpointing"
BEFORE, FORWARD = "before forward", "forward of the network"
BACKWARD, AFTER = "backward of the network", "after backward"
KEPT, LEFT = "kept after forward", "left after backward"  # headings of the budgets

STAYS_A_TUPLE = "a tuple of one output should stay a tuple"
# What an argument of "several" is, in messages.
PASSED = "x, which is passed twice", "y, which is passed with a view of it"

# Each run of a block: "block", "grad" (is autograd on?), "shape" of x, checksums of "x" and "mask",
# and in "data" x itself, if it is small.
Log = list[dict[str, Any]]
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
    """[[up [D, 4·D], down [4·D, D]], …], one pair for each block; not 4 if "wider" is given."""
    width, dtype = case.params["width"], dtype_of(case)
    inner = case.params.get("wider", WIDER) * width
    shapes = [(width, inner), (inner, width)]
    return [
        [torch.from_numpy(rng.standard_normal(of) / of[0] ** 0.5).to(dtype) for of in shapes]
        for _ in range(case.params["blocks"])
    ]


def draw_x(case: Case, rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape_of(case))).to(dtype_of(case))


def dtype_of(case: Case) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, case.params.get("dtype", "float32"))
    return dtype


def shape_of(case: Case) -> tuple[int, ...]:
    """[rows, D], or [samples, rows, D]."""
    samples = (case.params["samples"],) if "samples" in case.params else ()
    return (*samples, case.params["rows"], case.params["width"])


def checksum(x: Tensor) -> int:
    """Of its bytes, in any dtype, and its shape."""
    data = x.detach().contiguous().view(torch.uint8).numpy().data
    return zlib.crc32(data, zlib.crc32(repr(tuple(x.shape)).encode()))


def block_of(up: Tensor, down: Tensor, number: int, keep: float, log: Log) -> Block:
    def block(x: Tensor) -> Tensor:
        hidden = torch.tanh(x @ up)
        run: dict[str, Any] = {"block": number, "grad": torch.is_grad_enabled(), "mask": 0}
        run |= {"shape": list(x.shape), "x": checksum(x)}
        if x.numel() <= LOGGED_ELEMENTS:  # a numpy array is not counted as a tensor
            run["data"] = x.detach().double().flatten().numpy().copy()
        if keep < 1:
            mask = torch.rand(hidden.shape) < keep
            run["mask"] = zlib.crc32(np.packbits(mask.numpy()).tobytes())
            hidden = hidden * mask / keep
        log.append(run)
        return hidden @ down

    block.__module__, block.__qualname__ = "", "layer"  # in errors that quote its name
    return block


def step(
    network: Callable[[Blocks, list[Tensor], Any, Case], list[Tensor]],
    given: Any,
    case: Case,
    loss_of: Callable[[Tensor], Tensor] = lambda y: y.square().sum(),
    around: Callable[[str], AbstractContextManager[Any]] = nullcontext,
    saving: Callable[[list[Tensor]], AbstractContextManager[Any]] = nullcontext,
    log: Log | None = None,
) -> dict[str, Any]:
    """Forward and backward; restores the random state.

    ``around(label)``, such as `measure`, wraps a part; ``saving(weights)`` wraps the whole step;
    ``log`` is the list to fill.
    """
    log = [] if log is None else log
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
        state = zlib.crc32(torch.get_rng_state().numpy().tobytes())
        losses = [loss_of(y) for y in outputs if y.is_floating_point()]
        with around(BACKWARD):
            for loss in losses if case.params.get("apart") else [sum(losses[1:], losses[0])]:
                loss.backward()
        outputs = [y.detach() for y in outputs]
        del loss, losses  # and with them the graph: what is left now was kept elsewhere
        with around(AFTER):
            pass
        next_draw = torch.rand(4)
    found = {"log": log, "again": log[first_runs:], "saved": saved, STATE: state, NEXT: next_draw}
    gradients = [  # an unused leaf may have None or zeros
        [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
        for leaves in (arguments, weights)
    ]
    return found | dict(zip(VALUES, (outputs, *gradients), strict=True))


def results(ran: dict[str, Any], case: Case) -> dict[str, Plain]:
    """Evenly spaced elements of each tensor, about SAMPLES, and how often each block ran."""
    blocks = [run["block"] for run in ran["log"]]
    samples: dict[str, Any] = {
        name: [t.detach().flatten()[:: max(1, t.numel() // SAMPLES)].clone() for t in ran[name]]
        for name in VALUES
    }
    if case.params.get("network") == "several":
        samples[VALUES[1]] = dict(zip(PASSED, samples[VALUES[1]], strict=True))
    runs = [blocks.count(number) for number in range(case.params["blocks"])]
    return samples | {name: ran[name] for name in (STATE, NEXT)} | {RUNS: runs}


def first_other_x(log: Log, first_runs: int) -> str:
    """Where the first x in backward that equals no x of its block in forward differs from it."""
    for run in log[first_runs:]:
        same = [each for each in log[:first_runs] if each["block"] == run["block"]]
        if same and run["x"] not in [each["x"] for each in same]:
            ours, right = (np.ravel(each.get("data", ())) for each in (run, same[-1]))
            if len(ours) == len(right) and (wrong := np.flatnonzero(ours != right)).size:
                at = wrong[0]
                return (
                    f"element {at:,} is {ours[at]:.6g}, in forward it was {right[at]:.6g}; "
                    f"{wrong.size:,} of {ours.size:,} differ"
                )
            return f"its shape is {run['shape']}, in forward it was {same[-1]['shape']}"
    return ""


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
    return math.prod(shape_of(case)) * dtype_of(case).itemsize


def live_rise(run: Any, moment: str = FORWARD) -> list[int]:
    """By rank: live bytes at a moment minus those before forward."""
    ends = [[sum(rank.at(label).values()) for label in (BEFORE, moment)] for rank in run.memory]
    return [max(0, after - before) for before, after in ends]


def results_bytes(case: Case) -> float:
    """What is left after backward: outputs and gradients, and some scalars."""
    width, element = case.params["width"], dtype_of(case).itemsize
    weights = case.params["blocks"] * 2 * WIDER * width**2 * element
    tensors = 4 if case.params.get("network") == "several" else 2
    return weights + tensors * x_bytes(case) + 8192


def kept_after_forward(label: str, tensors_bytes: Callable[[Case], float]) -> tuple[Budget, ...]:
    """Budgets of live bytes after forward and after backward; and in large cases, one of process
    memory."""

    def limit_of(most: Callable[[Case], float]) -> Callable[[Case], Limit | None]:
        def limit(case: Case) -> Limit | None:
            return None if x_bytes(case) < BUDGET_FROM_BYTES else Limit(1.02 * most(case))

        return limit

    def process_bytes(case: Case) -> float | None:
        return 1.02 * tensors_bytes(case) if case.params.get("large") else None

    left = partial(live_rise, moment=AFTER)
    return (
        Budget(label, live_rise, limit_of(tensors_bytes), heading=KEPT),
        Budget("leaves only outputs and gradients", left, limit_of(results_bytes), heading=LEFT),
        process_memory_budget(FORWARD, process_bytes, before=BEFORE),
    )
