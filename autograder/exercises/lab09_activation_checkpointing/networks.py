"""Networks that call their blocks through the student's checkpoint, and the drive of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercises.lab09_activation_checkpointing import shared
from autograder.exercises.lab09_activation_checkpointing.shared import (
    results,
    same_bits,
    step,
    without_torchs_own,
)
from shardlab import measure

Checkpointer = Callable[..., Any]


def plainly(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def chain(checkpoint: Checkpointer, blocks: list[shared.Block], x: Tensor) -> Tensor:
    for block in blocks:
        x = checkpoint(block, x)
    return x


def nested(checkpoint: Checkpointer, blocks: list[shared.Block], x: Tensor) -> Tensor:
    """All blocks in one checkpoint, and all but the first in another within it."""

    def outer(x: Tensor) -> Tensor:
        return checkpoint(lambda x: chain(plainly, blocks[1:], x), blocks[0](x))

    return checkpoint(outer, x)


def several(
    checkpoint: Checkpointer, blocks: list[shared.Block], x: Tensor, other: Tensor, given: Any
) -> list[Tensor]:
    """Tensors with and without gradients, a number, a word and None; out come two and an index."""

    def mixed(x: Tensor, scale: float, mask: Tensor, how: str, y: Tensor, nothing: None) -> Any:
        if nothing is not None or how != "add":
            raise ValueError("arguments should reach the function as they were given")
        first = blocks[0](x * mask) * scale
        second = blocks[1](y) + torch.sigmoid(x)
        return first, second, first.argmax(dim=1)

    args = (x, given["scale"], given["mask"], "add", other, None)
    first, second, index = checkpoint(mixed, *args)
    return [first, second, index]


def network_of(checkpoint: Checkpointer, given: Any, case: Case) -> shared.Network:
    def network(blocks: list[shared.Block], arguments: list[Tensor]) -> list[Tensor]:
        kind = case.params.get("network", "chain")
        if kind == "several":
            outputs = several(checkpoint, blocks, *arguments, given)
        else:
            outputs = [(nested if kind == "nested" else chain)(checkpoint, blocks, arguments[0])]
        if case.params.get("random loss"):  # one with dropout of its own
            torch.rand(4)
        return outputs[1:] if case.params.get("one unused") else outputs

    return network


def drive(subject: Checkpointer, given: Any, case: Case) -> Plain:
    with without_torchs_own():
        ours = step(network_of(subject, given, case), given, case, around=measure)
    plain = step(network_of(plainly, given, case), given, case)
    return results(ours, case) | {"bit for bit": same_bits(ours, plain), "log": ours["log"]}
