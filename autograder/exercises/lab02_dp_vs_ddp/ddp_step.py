"""Data parallelism by all-reduce: weights are broadcast once, gradients averaged in each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from autograder.exercise import NAMED_MISTAKES, Attempt, Case, Finding, OnRanks, Plain
from autograder.exercise.signs import MistakeText, on_each_rank
from autograder.exercises.lab02_dp_vs_ddp import shared
from autograder.exercises.lab02_dp_vs_ddp.shared import LR, drive_steps
from shardlab.errors import RunTimeout


def drive(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    def take_step(model: nn.Module, batch: list[Tensor], step: int) -> None:
        subject(model, *batch, LR, step)

    return drive_steps(case, given, subject, take_step)


def different_sources(attempt: Attempt) -> Finding | None:
    table = attempt.error.table if isinstance(attempt.error, RunTimeout) else ()
    waiting = [row for row in table if row.call.startswith("broadcast")]
    if len(waiting) < 2:
        return None
    return Finding(
        "the ranks",
        "wait in a broadcast with different sources: src has to be the same on every rank",
        waiting[0].source,
        who_if_hidden="the ranks",
    )


@on_each_rank
def broadcasts_too_much(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    enough = shared.start_bytes(attempt.case)
    broadcast_bytes = shared.bytes_passed_to("broadcast", attempt, rank)
    if broadcast_bytes <= enough:
        return None
    mistake = "broadcasts more than the model once: each tensor one time, in step 0 only"
    if broadcast_bytes == shared.start_bytes(attempt.case, by_name=True):
        mistake = f"broadcasts {shared.TIED_TWICE}"
    return mistake, f"{broadcast_bytes:,} bytes, {enough:,} are enough"


def reduces_the_loss(attempt: Attempt) -> Finding | None:
    calls = [c for c in attempt.run.calls if c.op == "all_reduce"] if attempt.run else []
    if not calls or any(call.shape for call in calls):
        return None
    mistake = "all-reduces the loss, a single number: all-reduce the gradients"
    return Finding(f"rank {calls[0].rank}", mistake, calls[0].source)


EXERCISE = OnRanks(
    points=5,
    cases=shared.STEP_CASES,
    inputs=shared.draw,
    drive=drive,
    budgets=(shared.WITHIN_FIVE_PERCENT,),
    allows=frozenset({"broadcast", "all_reduce"}),
    rules=shared.RULES,
    signs=(
        different_sources,
        reduces_the_loss,
        NAMED_MISTAKES,
        shared.wrong_from_the_second_step,
        broadcasts_too_much,
    ),
)
