"""A training step that waits for all ranks after each micro-batch, repaired: one message a step.

The last rank is always late: it gets its first micro-batch when all others have got their last one.
An answer that waits for the other ranks before that hangs, which the checker recognizes, whatever
the machine's speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from autograder.exercise import (
    NAMED_MISTAKES,
    Attempt,
    Budget,
    Case,
    Finding,
    Limit,
    OnRanks,
    Plain,
    sent_bytes,
)
from autograder.exercise.budget import recorded_calls_explain
from autograder.exercise.signs import (
    MistakeText,
    half_precision,
    is_over,
    never_waited,
    on_each_rank,
    raises,
)
from autograder.exercises.common import BUDGET_FROM_BYTES, FLOAT_BYTES
from autograder.exercises.lab02_dp_vs_ddp.bucket_calls import awaited, is_students
from autograder.exercises.lab02_dp_vs_ddp.bucketed_ddp import barrier
from autograder.exercises.lab02_dp_vs_ddp.shared import (
    build,
    build_with,
    draw_batch,
    draw_state,
    flat,
    parameter_bytes,
    trainable,
)
from autograder.exercises.lab13_accelerate.shared import as_number
from shardlab.run import Call, Run

STEPS = 3
LR, MOMENTUM = 0.02, 0.9
TOLERANCE = 1e-4
CALLS = "collectives"  # heading of a budget
LOSS_BYTES = 8  # at most


def draw_inputs(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same weights on all ranks, each rank's own micro-batches: [inputs, targets] each."""
    state = draw_state(case, rng)
    count = case.params["micro_batches"]
    return [
        {
            "state": state,
            "steps": [[draw_batch(case, rng) for _ in range(count)] for _ in range(STEPS)],
        }
        for _ in range(case.world_size)
    ]


class MicroBatches:
    """Those of a step. The last rank's first one comes after all others' last one."""

    def __init__(self, batches: Sequence[Sequence[Tensor]], group: Any) -> None:
        self.batches, self.group, self.met = batches, group, False
        is_late = dist.get_rank() == dist.get_world_size() - 1
        self.meets_at = 0 if is_late else len(batches) - 1

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Sequence[Tensor]]:
        for index, batch in enumerate(self.batches):
            if index == self.meets_at and not self.met:
                self.met = True
                barrier(self.group)
            yield batch


def drive(subject: Callable[..., Any], given: Any, case: Case) -> Plain:
    model, group = build_with(case, given["state"]), dist.new_group()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    output: dict[str, Plain] = {}
    for step, batches in enumerate(given["steps"]):
        loss = as_number(subject(model, optimizer, MicroBatches(batches, group)))
        output |= of_one_step(step, loss, flat(model.parameters()))
    return output


def of_one_step(step: int, loss: float, parameters: Tensor) -> dict[str, Plain]:
    return {f"the loss of step {step}": loss, f"the parameters after step {step}": parameters}


def calls_of(run: Run, rank: int) -> list[Call]:
    """The answer's."""
    return [call for call in run.calls_of(rank) if is_students(call)]


def collectives(run: Run) -> list[int]:
    return [len(calls_of(run, rank)) for rank in range(run.world_size)]


def step_bytes(case: Case) -> int:
    """The gradients and one loss."""
    return parameter_bytes(case, trained=True) + FLOAT_BYTES


def sent_limit(case: Case) -> Limit | None:
    sent = STEPS * 2 * (1 - 1 / case.world_size) * step_bytes(case)
    return Limit.around(sent, 0.05) if sent >= BUDGET_FROM_BYTES else None


def waits_in_between(attempt: Attempt) -> Finding | None:
    """A rank waits in an answer's call, and the late one for its first micro-batch."""
    waiting = awaited(attempt)
    late = attempt.calls_of(attempt.case.world_size - 1)
    if not waiting or not any(call.end_s is None and not is_students(call) for call in late):
        return None
    rank, call = waiting[0]
    what = "all-reduces the loss by itself, and " if call.bytes <= LOSS_BYTES else ""
    return Finding(
        f"rank {rank}",
        f"{what}waits for all ranks before it has its last micro-batch: one that is late in any of "
        "them then delays all others each time; nothing is needed from other ranks before the "
        "step's last backward",
        call.source,
    )


@on_each_rank
def too_many_calls(rank: int, case: Case, attempt: Attempt) -> MistakeText:
    if attempt.run is None or rank not in is_over(attempt, CALLS):
        return None
    calls = calls_of(attempt.run, rank)
    micro_batches, parameters = case.params["micro_batches"], len(trainable(build(case)))
    evidence = f"{len(calls)} collectives in {STEPS} steps"
    gradient_bytes = sum(call.bytes for call in calls) / STEPS / step_bytes(case)
    if micro_batches > 1 and gradient_bytes > 1.5:
        return (
            "all-reduces gradients more than once a step: .grad adds up the micro-batches'",
            f"{gradient_bytes:.1f} times the gradients in each step",
        )
    if len(calls) >= STEPS * parameters:
        return (
            "all-reduces each gradient by itself: each call costs its latency, so copy all of them "
            "into one flat buffer",
            evidence,
        )
    return (
        "all-reduces the loss by itself: it is one number more in the buffer of the gradients, "
        "added up over the micro-batches first",
        evidence,
    )


def case_of(
    name: str, world_size: int, micro_batches: int, widths: list[int], **layout: Any
) -> Case:
    return Case(name, world_size, {"widths": widths, "micro_batches": micro_batches, **layout})


EXERCISE = OnRanks(
    points=4,
    cases=(
        case_of("2 ranks, 3 micro-batches, 0.8 MB of gradients", 2, 3, [256, 512, 128]),
        case_of("3 ranks, 2 micro-batches, a frozen layer", 3, 2, [24, 16, 16, 8], frozen=1),
    ),
    inputs=draw_inputs,
    drive=drive,
    tolerance=TOLERANCE,
    allows=frozenset({"all_reduce"}),
    budgets=(
        Budget(
            "one collective a step", collectives, lambda case: Limit(STEPS, STEPS), CALLS, "calls"
        ),
        Budget("sends ≤ 1.05 × the gradients and a loss per step", sent_bytes, sent_limit),
        recorded_calls_explain(sent_bytes, lambda case: sent_limit(case) is not None),
    ),
    rules=(half_precision, never_waited),
    signs=(
        waits_in_between,
        raises(
            "'NoneType' object has no attribute",
            "uses a .grad that is None: a frozen parameter has none",
            quoted=True,
        ),
        NAMED_MISTAKES,
        too_many_calls,
    ),
)
