"""Marked moments: the rank pauses while the checker measures its process memory from outside."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from shardlab import measure

START = "begun"  # once `drive` has its inputs in memory


def mark(moment: str) -> None:
    with measure(moment):
        pass


def mark_in_backward(module: nn.Module, moment: str) -> None:
    """Marks the moment when backward reaches ``module``, from the next forward pass on."""

    def after(_: nn.Module, given: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda _: mark(moment))

    module.register_forward_hook(after)
