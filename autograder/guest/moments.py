"""Marked moments: the rank pauses while the checker measures it from outside.

Student code runs in the same process, so it can mark moments too, or keep ours from being marked.
An exercise stays safe if neither helps:
- a budget of process memory counts the most of all readings with a label, so more readings never
  help, and a missing one costs the points (exercise/process_memory.py);
- `mark` can return a value that the checker withholds until it has measured the rank
  (`Exercise.withheld`).  What comes after a moment then cannot be computed before it.

A moment may be marked any number of times, between steps for example; labels may be drawn as part
of a case's inputs, which only that rank gets.
"""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor, nn

from shardlab.trace import measure as trace

LOADED = "loaded"  # before anything of the answer exists in the process
START = "started"  # once `drive` has its inputs in memory


def measure_loaded() -> None:
    """Has the checker measure the process, without an entry in the log."""
    if trace.recorder is not None:
        trace.recorder.await_measurement(LOADED)


def mark(moment: str) -> Any:
    """Returns the next value withheld until this moment; None if there is none."""
    return None if trace.recorder is None else trace.recorder.mark(moment)


def mark_settled(moment: str) -> None:
    """Marks a moment after gloo's threads have released the tensors of their last exchange."""
    if trace.recorder is not None and trace.recorder.memory is not None:
        trace.recorder.memory.wait_for_releases()
    mark(moment)


def note(moment: str) -> None:
    """An entry in the log, without a pause for the checker."""
    if trace.recorder is not None:
        now = time.monotonic()
        trace.recorder.log.write("block", moment, now, now, {})


def mark_in_backward(module: nn.Module, moment: str) -> None:
    """Marks the moment when backward reaches ``module``, from the next forward pass on."""

    def after(_: nn.Module, given: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda _: mark(moment))

    module.register_forward_hook(after)


def withhold_in_backward(module: nn.Module, moment: str) -> None:
    """Like `mark_in_backward`; the gradient of the module's output is then multiplied, sample by
    sample, by the withheld factors, so nothing below can be computed without them."""

    def after(_: nn.Module, given: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: scaled(gradient, mark(moment)))

    module.register_forward_hook(after)


def scaled(gradient: Tensor, factors: Tensor) -> Tensor:
    """gradient [B, ...], factors [B]"""
    return factors.view(-1, *[1] * (gradient.dim() - 1)) * gradient
