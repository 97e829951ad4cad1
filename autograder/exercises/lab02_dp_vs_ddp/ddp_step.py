"""Data parallelism by all-reduce: weights are broadcast once, gradients averaged in each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autograder.exercise import NAMED_MISTAKES, Attempt, Case, Finding, OnRanks, Plain
from autograder.exercise.signs import MistakeText, on_each_rank
from autograder.exercises.lab02_dp_vs_ddp import shared
from autograder.exercises.lab02_dp_vs_ddp.shared import LR, take_steps
from shardlab.errors import RunTimeout


def drive(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    return take_steps(case, given, lambda model, batch, step: subject(model, *batch, LR, step))


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
    mistake = "broadcasts more than once: after step 0, equal steps keep the weights equal"
    if broadcast_bytes == shared.start_bytes(attempt.case, by_name=True):
        mistake = f"broadcasts {shared.TIED_TWICE}"
    return mistake, f"{broadcast_bytes:,} bytes, {enough:,} are enough"


EXERCISE = OnRanks(
    points=5,
    cases=shared.STEP_CASES,
    inputs=shared.draw,
    drive=drive,
    budgets=(shared.WITHIN_FIVE_PERCENT,),
    allows=frozenset({"broadcast", "all_reduce"}),
    signs=(
        different_sources,
        NAMED_MISTAKES,
        shared.wrong_from_the_second_step,
        broadcasts_too_much,
    ),
)
