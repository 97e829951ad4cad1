"""Budgets of memory that are seen from outside: private pages of the ranks' processes.

What `run.memory` tells is recorded in the rank, beside the student's code.  So where an exercise
has a budget of live bytes, one hidden case is large, and there the process itself may not have
grown by much more than a right answer's does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from autograder.exercise import Budget, Case
from shardlab import measure
from shardlab.run import Run

BEGUN = "begun"  # a block that marks when a drive has all that it was given
# Python's own objects, and pages half in use: less than 1 MiB was seen in right answers.
ROOM_BYTES = 4 << 20


def mark(moment: str) -> None:
    with measure(moment):
        pass


def mark_in_backward(module: nn.Module, moment: str) -> None:
    """When backward comes to ``module``, from the next pass on."""

    def after(_: nn.Module, given: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda _: mark(moment))

    module.register_forward_hook(after)


def rise(run: Run, before: str, after: str) -> list[int]:
    """By rank: bytes in use when a block ended over those when another did.

    Raises KeyError where a rank never came to the end of one.
    """
    seen = [memory.seen_bytes for memory in run.memory]
    return [blocks[after].most - blocks[before].least for blocks in seen]


def no_more_than_tensors(
    after: str, tensors_bytes: Callable[[Case], float | None], before: str = BEGUN
) -> Budget:
    """``tensors_bytes``: what a right answer's tensors may take then; None: too little to see."""

    def limit(case: Case) -> list[float] | None:
        size = tensors_bytes(case)
        return None if size is None else [size + ROOM_BYTES] * case.world_size

    return Budget(
        "its process holds what its tensors take",
        limit=limit,
        used=lambda run: rise(run, before, after),
        least=lambda case: [-(2**62)] * case.world_size,  # it may have shrunk
        heading="seen from outside",
        from_outside=True,
    )
