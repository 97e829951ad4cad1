"""Data parallelism through rank 0: weights go out, gradients come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import Tensor, nn

from autograder.exercise import (
    NAMED_MISTAKES,
    Attempt,
    Budget,
    Case,
    Finding,
    Plain,
    sent_bytes,
)
from autograder.exercise.budget import received_bytes
from autograder.exercise.signs import MistakeText, on_each_rank, raises
from autograder.exercises.lab02_dp_vs_ddp import shared
from autograder.exercises.lab02_dp_vs_ddp.shared import drive_steps, load_state, lr_of
from shardlab.errors import DeadlockError, LaunchError, RankError, Waiting

OTHERS_LR = 3  # times the hub's: with the same, new weights could be averaged for gradients
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
    """Only the hub's weights last from one step to the next, and only it gets the right ``lr``."""
    replaced = False

    def take_step(model: nn.Module, batch: list[Tensor], step: int) -> None:
        nonlocal replaced
        if dist.get_rank() > 0:
            load_state(model, given["state"])
        tensors = [parameter.data for parameter in model.parameters()]
        subject(model, *batch, lr_of(step) * (1 if dist.get_rank() == 0 else OTHERS_LR))
        for parameter, tensor in zip(model.parameters(), tensors, strict=False):
            replaced |= parameter.data_ptr() != tensor.data_ptr()
            parameter.data = tensor  # without what was not changed in place

    return drive_steps(case, given, subject, take_step) | {"replaced": replaced}


def receives_from_any(attempt: Attempt) -> Finding | None:
    """The hub got a tensor of another size, and its recv has no src."""
    error, run = attempt.error, attempt.run
    aborted = isinstance(error, RankError) and (error.rank, error.kind) == (0, "SIGABRT")
    for call in run.calls if run and (aborted or sizes_differ(error)) else []:
        if call.rank == 0 and call.op == "recv" and call.peer is None:
            mistake = "receives without src, so from whichever rank sends first, any tensor of it"
            return Finding("rank 0", mistake, call.source, who_if_hidden="the hub")
    return None


def sizes_differ(error: LaunchError | None) -> bool:
    """Whether one side sends a tensor of a different size from what the other side receives."""
    return isinstance(error, DeadlockError) and any(" of " in row.call for row in error.table)


def hangs(attempt: Attempt) -> Finding | None:
    """What the hub and a rank that it waits for, or that waits for it, were doing."""
    error = attempt.error
    if not isinstance(error, DeadlockError):
        return None
    if sizes_differ(error):
        mistake = "do not send and receive the same tensors in the same order"
        return Finding("the ranks", mistake, error.headline, who_if_hidden="the ranks")
    hub = error.table[0]
    waits_for_hub = [row for row in error.table if 0 in row.waits_for]
    peers = [row for row in error.table if row.rank in hub.waits_for]
    if hub.state == "finished" and waits_for_hub:
        seen = waits_for_hub[:1]
        mistake = f"has finished while another rank waits {_op(seen[0])} for it"
    elif peers and peers[0].state == "finished":
        seen = [hub]
        mistake = f"waits {_op(hub)} for a rank that has finished"
    elif peers and peers[0] in waits_for_hub and _op(peers[0]) == _op(hub):
        seen = [hub, peers[0]]
        mistake = f"waits {_op(hub)} for a rank that waits {_op(hub)} for it"
    else:
        return None
    mistake = f"{mistake}: each send needs a recv on the other side"
    lines = "; ".join(f"rank {row.rank}: {row.source}" for row in seen)
    return Finding("rank 0", mistake, lines, who_if_hidden="the hub")


def _op(row: Waiting) -> str:
    return f"in {row.call.split(' ')[0]}"


@on_each_rank
def replaces_parameters(output: Any, rank: int) -> MistakeText:
    if rank or not output["replaced"]:
        return None
    return (
        "gives the hub's parameters new tensors: change the old ones in place, with parameter -= …"
    )


@on_each_rank
def sends_to_others(rank: int, case: Case, attempt: Attempt) -> MistakeText:
    if attempt.run is None or not rank:
        return None
    if attempt.run.traffic.sent_bytes[rank, 1:].sum() < shared.parameter_bytes(case) / 2:
        return None
    return "sends to ranks other than the hub: each gradient goes straight to the hub"


EXERCISE = shared.OfSteps(
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
        receives_from_any,
        hangs,
        replaces_parameters,
        NAMED_MISTAKES,
        sends_to_others,
    ),
)
