"""Networks that call their blocks through the student's checkpoint, and their drive function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import call
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercises.lab10_activation_checkpointing.shared import (
    BITS,
    STAYS_A_TUPLE,
    Blocks,
    close_torchs_own,
    first_other_x,
    results,
    same_bits,
    step,
)
from shardlab import measure


def chain(checkpoint: Callable[..., Any], blocks: Blocks, x: Tensor) -> Tensor:
    """A block that is used again gets an x of another shape.  No output is the next block's input:
    a checkpoint that keeps its outputs as well would keep nothing more."""
    for i, block in enumerate(blocks):
        x = checkpoint(block, x[None] if block in blocks[:i] else x) * 1.0
    return x


def apart(checkpoint: Callable[..., Any], blocks: Blocks, x: Tensor) -> list[Tensor]:
    """Two graphs: the first block, whose output is in a tuple, and a chain in which the second
    block is used twice."""

    def in_a_tuple(scale: float, x: Tensor) -> tuple[Tensor]:
        return (blocks[0](x) * scale,)

    first = checkpoint(in_a_tuple, 2.0, x)
    if not isinstance(first, tuple):
        raise TypeError(STAYS_A_TUPLE)
    return [*first, chain(checkpoint, [*blocks[1:], blocks[1]], x)]


def nested(checkpoint: Callable[..., Any], blocks: Blocks, x: Tensor) -> Tensor:
    """All blocks in one checkpoint, and all but the first in another one inside it, with an x of
    another shape."""

    inner = partial(chain, call, blocks[1:])
    return checkpoint(lambda x: checkpoint(inner, blocks[0](x)[None]), x)


def several(
    checkpoint: Callable[..., Any], blocks: Blocks, arguments: list[Tensor], given: Any
) -> list[Tensor]:
    """Arguments: None, tensors with and without gradients, one of them of booleans, a number and a
    string; one tensor is an argument twice, another is a 0-dim view of the storage of a third, and
    these two have a graph.  Outputs: an index, tensors with gradients that depend on each other,
    and one without."""

    def mixed(
        nothing: None,
        x: Tensor,
        scale: float,
        mask: Tensor,
        how: str,
        y: Tensor,
        corner: Tensor,
        again: Tensor,
    ) -> Any:
        if nothing is not None or how != "add":
            raise ValueError("arguments should reach the function unchanged")
        first = blocks[0](x.masked_fill(mask, 0.0)) * scale
        second = blocks[1](y) + torch.sigmoid(again) * corner
        return first.argmax(dim=1), first, second, mask * 2.0, first * second

    x, y = arguments[0], arguments[1].square()
    return list(checkpoint(mixed, None, x, given["scale"], given["mask"], "add", y, y[0, 0], x))


def network(
    checkpoint: Callable[..., Any], blocks: Blocks, arguments: list[Tensor], given: Any, case: Case
) -> list[Tensor]:
    kind = case.params.get("network", "chain")
    if kind == "several":
        outputs = several(checkpoint, blocks, arguments, given)
    elif kind == "apart":
        outputs = apart(checkpoint, blocks, arguments[0])
    else:
        in_order = [blocks[i] for i in case.params.get("order", range(len(blocks)))]
        outputs = [(nested if kind == "nested" else chain)(checkpoint, in_order, arguments[0])]
    if case.params.get("random loss"):  # a loss with dropout
        torch.rand(4)
    unused = case.params.get("unused")
    return [each for i, each in enumerate(outputs) if i != unused]


def plain_step(given: Any, case: Case, **how: Any) -> dict[str, Any]:
    """Without checkpointing."""
    return step(partial(network, call), given, case, **how)


def drive(subject: Callable[..., Any], given: Any, case: Case) -> Plain:
    close_torchs_own()
    ours = step(partial(network, subject), given, case, around=measure)
    is_same = same_bits(ours, plain_step(given, case))
    log, first_runs = ours["log"], len(ours["log"]) - len(ours["again"])
    logged = {"runs in forward": first_runs, "other x": first_other_x(log, first_runs)}
    logged["log"] = [{key: run[key] for key in run if key != "data"} for run in log]
    return results(ours, case) | {BITS: is_same} | logged
