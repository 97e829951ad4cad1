"""Moments at which a rank pauses while the checker reads its process's memory from outside."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from shardlab import measure

BEGUN = "begun"  # when a drive has all that it was given


def mark(moment: str) -> None:
    with measure(moment):
        pass


def mark_in_backward(module: nn.Module, moment: str) -> None:
    """When backward comes to ``module``, from the next pass on."""

    def after(_: nn.Module, given: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda _: mark(moment))

    module.register_forward_hook(after)
