"""Networks that call their blocks through the student's checkpoint, and the drive of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercises.lab09_activation_checkpointing.shared import (
    Block,
    Network,
    runs_of,
    same_bits,
    sampled,
    step,
    without_torchs_own,
)
from shardlab import measure

Checkpointer = Callable[..., Any]


def plainly(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def chain(checkpoint: Checkpointer, blocks: list[Block], x: Tensor) -> list[Tensor]:
    for block in blocks:
        x = checkpoint(block, x)
    return [x]


def nested(checkpoint: Checkpointer, blocks: list[Block], x: Tensor) -> list[Tensor]:
    """All blocks in one checkpoint, and all but the first in another within it."""

    def inner(x: Tensor) -> Tensor:
        return chain(plainly, blocks[1:], x)[0]

    def outer(x: Tensor) -> Tensor:
        return checkpoint(inner, blocks[0](x))

    return [checkpoint(outer, x)]


def several(
    checkpoint: Checkpointer, blocks: list[Block], ends: list[Tensor], given: Any, case: Case
) -> list[Tensor]:
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


def network_of(checkpoint: Checkpointer, given: Any, case: Case) -> Network:
    def network(blocks: list[Block], ends: list[Tensor]) -> list[Tensor]:
        if case.params["network"] == "several":
            outputs = several(checkpoint, blocks, ends, given, case)
        else:
            form = {"chain": chain, "nested": nested}[case.params["network"]]
            outputs = form(checkpoint, blocks, ends[0])
        if case.params["random loss"]:  # one with dropout of its own
            torch.rand(4)
        return outputs

    return network


def results(ran: dict[str, Any]) -> dict[str, Plain]:
    return sampled(ran) | {"next draw": ran["next draw"], "runs": runs_of(ran["log"])}


def drive(subject: Checkpointer, given: Any, case: Case) -> Plain:
    with without_torchs_own():
        ours = step(network_of(subject, given, case), given, case, around=measure)
    plain = step(network_of(plainly, given, case), given, case)
    return results(ours) | {"bit for bit": same_bits(ours, plain), "log": ours["log"]}
