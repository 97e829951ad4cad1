"""Data parallelism through rank 0: weights go out, gradients come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn

from autograder.exercise import (
    NAMED_MISTAKES,
    Attempt,
    Budget,
    Case,
    Finding,
    OnRanks,
    Plain,
    sent_bytes,
)
from autograder.exercise.budget import received_bytes
from autograder.exercise.signs import MistakeText, on_each_rank, raises
from autograder.exercises.lab02_dp_vs_ddp import shared
from autograder.exercises.lab02_dp_vs_ddp.shared import LR, drive_steps
from shardlab.errors import DeadlockError

WITHIN_ONE_PERCENT = Budget("sends ≤ 1.01 × ideal bytes per rank", sent_bytes)
# Else the gradients' sum could come through the other ranks, one after another.
FROM_EACH = Budget("the hub receives every gradient", received_bytes, heading="received by a rank")


def draw(case: Case, rng: np.random.Generator) -> list[Plain]:
    """Weights differ from rank to rank; buffers do not, because they are not sent here."""
    given = shared.draw(case, rng)
    for each in given:
        each["state"] |= shared.buffers_in(given[0]["state"])
    return given


def drive(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    def take_step(model: nn.Module, batch: list[Tensor], step: int) -> None:
        subject(model, *batch, LR)

    return drive_steps(case, given, subject, take_step)


def hangs(attempt: Attempt) -> Finding | None:
    error = attempt.error
    if not isinstance(error, DeadlockError):
        return None
    rows = {row.rank: row for row in error.table}
    if any(" of " in row.call for row in rows.values()):
        return Finding(
            "the ranks",
            "send tensors in one order and receive them in another: go through model.parameters() "
            "the same way on both sides",
            error.headline,
            who_if_hidden="the ranks",
        )
    waiting = {rank: row.call.split(" ")[0] for rank, row in rows.items() if row.state == "waiting"}
    mistake = name_hang(attempt, waiting, rows[0].waits_for)
    row = rows[0] if 0 in waiting else rows[min(waiting)]
    return Finding("rank 0", mistake, row.source, who_if_hidden="the hub") if mistake else None


def name_hang(attempt: Attempt, waiting: dict[int, str], hub_waits_for: tuple[int, ...]) -> str:
    """``waiting`` is the op that each blocked rank is in: "send" or "recv"."""
    hub = waiting.get(0, "")
    peer = waiting.get(hub_waits_for[0], "") if hub and hub_waits_for else ""
    others = {op for rank, op in waiting.items() if rank}
    # A send that is still pending counts: the hub is at its first step's last weights, or beyond.
    once = (attempt.case.world_size - 1) * shared.parameter_bytes(attempt.case)
    sent = shared.bytes_passed_to("send", attempt, 0)
    if hub == "send" and peer == "send":
        if sent > once:
            return "starts the next step while others still send gradients: receive N - 1 of each"
        return (
            "sends weights while the others send gradients, and nobody receives: the others have "
            "to receive the weights first"
        )
    if hub == "recv" and peer == "recv" and sent < once:
        return "waits for gradients from ranks that wait for weights: send weights to all first"
    if hub == "recv" and peer != "send":
        return "waits for a gradient that nobody sends"
    if not hub and others == {"recv"}:
        return "has finished while others still wait for weights: send them to each of the N - 1"
    if not hub and others == {"send"}:
        return "has finished while others still send gradients: receive N - 1 of each"
    return ""


@on_each_rank
def sends_to_others(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    if attempt.run is None or not rank:
        return None
    if attempt.run.traffic.sent_bytes[rank, 1:].sum() < shared.parameter_bytes(attempt.case) / 2:
        return None
    return "sends to other ranks than the hub: each gradient goes straight to the hub"


@on_each_rank
def sends_too_much(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    peers = 1 if rank else attempt.case.world_size - 1
    times = peers * shared.steps_in(attempt.case)
    enough = times * shared.parameter_bytes(attempt.case)
    by_name = times * shared.parameter_bytes(attempt.case, by_name=True)
    sent = shared.bytes_passed_to("send", attempt, rank)
    if sent > enough and rank:
        mistake = "sends more than its gradient: the hub needs nothing else from it"
    elif sent == by_name > enough:
        mistake = f"sends {shared.TIED_TWICE}"
    elif sent >= 2 * enough:
        mistake = (
            "sends the weights twice in a step: the next step begins by sending them, so do not "
            "send them at the end"
        )
    else:
        return None
    return mistake, f"{sent:,} bytes, {enough:,} are enough"


EXERCISE = OnRanks(
    points=5,
    cases=shared.STEP_CASES,
    inputs=draw,
    drive=drive,
    budgets=(WITHIN_ONE_PERCENT, FROM_EACH),
    allows=frozenset({"send", "recv"}),
    rules=shared.RULES,
    signs=(
        raises(
            "should not be the same as the rank",
            "sends to itself or receives from itself: its partners are the N - 1 others",
        ),
        hangs,
        NAMED_MISTAKES,
        shared.wrong_from_the_second_step,
        sends_too_much,
        sends_to_others,
    ),
)
