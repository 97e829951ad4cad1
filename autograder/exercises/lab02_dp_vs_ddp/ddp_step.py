"""Data parallelism by all-reduce: weights are broadcast once, gradients averaged in each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from autograder.exercise import NAMED_MISTAKES, Attempt, Case, Finding, Plain
from autograder.exercises.lab02_dp_vs_ddp import shared
from autograder.exercises.lab02_dp_vs_ddp.shared import drive_steps, load_state, lr_of
from shardlab.errors import RunTimeout


def drive(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    """In one case the training starts again: the other ranks' state is no longer rank 0's."""
    restart = case.params.get("restart", 0)

    def take_step(model: nn.Module, batch: list[Tensor], step: int) -> None:
        if step == restart and dist.get_rank() > 0:
            load_state(model, given["state"])
        subject(model, *batch, lr_of(step), step - restart if step >= restart else step)

    return drive_steps(case, given, subject, take_step)


def broadcast_never_ends(attempt: Attempt) -> Finding | None:
    table = attempt.error.table if isinstance(attempt.error, RunTimeout) else ()
    waiting = [row for row in table if row.call.startswith("broadcast")]
    if len(waiting) < 2:
        return None
    return Finding(
        "the ranks",
        "wait in a broadcast that never ends: is its src the same on every rank?",
        waiting[0].source,
        who_if_hidden="the ranks",
    )


def reduces_single_numbers(attempt: Attempt) -> Finding | None:
    run = attempt.run if attempt.error is None else None
    calls = [call for call in run.calls if call.op == "all_reduce"] if run else []
    if not calls or any(call.shape for call in calls):
        return None
    mistake = "all-reduces single numbers only, such as the loss: all-reduce the gradients"
    return Finding(f"rank {calls[0].rank}", mistake, calls[0].source)


EXERCISE = shared.OfSteps(
    points=5,
    cases=shared.STEP_CASES,
    inputs=shared.draw,
    drive=drive,
    budgets=(shared.WITHIN_FIVE_PERCENT,),
    allows=frozenset({"broadcast", "all_reduce"}),
    rules=shared.RULES,
    signs=(
        broadcast_never_ends,
        reduces_single_numbers,
        NAMED_MISTAKES,
    ),
)
