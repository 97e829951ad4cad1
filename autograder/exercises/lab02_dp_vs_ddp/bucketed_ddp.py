"""BucketedDDP: gradients averaged bucket by bucket while backward runs.

The last rank is always late: it starts its backward when all others have ended theirs.  An answer
that waits for a collective inside a hook waits for that rank, which waits for it: a hang that has
a name, whatever the machine's speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.exercise import NAMED, Budget, Case, Limit, OnRanks, Plain
from autograder.exercises.lab02_dp_vs_ddp import bucket_calls, shared
from autograder.exercises.lab02_dp_vs_ddp.bucket_calls import BACKWARD, GRADIENT, SIGNAL
from autograder.exercises.lab02_dp_vs_ddp.shared import (
    STEPS,
    after_step,
    apply_gradient,
    build_with,
    trainable,
)
from autograder.guest.moments import mark
from shardlab import measure
from shardlab.run import Run

# In each case, buckets in forward order, without a cap, or filled above it, are other buckets.
WIDTHS, SQUARE = [64, 256, 256, 128, 32], [160, 160, 160, 160, 32]
TIED = {"widths": SQUARE, "tied": [0, 2], "cap_bytes": 120_000}
FROZEN = {"widths": WIDTHS, "frozen": 2, "cap_bytes": 270_000}


def draw(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same weights everywhere, and each rank's own batches."""
    state = shared.draw_state(case, rng)
    return [
        {"state": state, "batches": shared.draw_batches(case, rng)} for _ in range(case.world_size)
    ]


def drive(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    model = build_with(case, given["state"])
    for parameter in trainable(model):  # this hook runs before the student's
        parameter.register_post_accumulate_grad_hook(lambda _: mark(GRADIENT))
    aside = dist.new_group()
    wrapped = subject(model, case.params["cap_bytes"])
    late = dist.get_rank() == case.world_size - 1
    output = {}
    for step, (inputs, targets) in enumerate(given["batches"]):
        model.zero_grad()
        loss = wrapped(inputs, targets)
        if late:
            meet(aside)
        with measure(BACKWARD):
            loss.backward()
        if not late:
            meet(aside)
        wrapped.finish()
        apply_gradient(model)
        output[f"step {step}"] = after_step(case, model)
    return output


def meet(group: Any) -> None:
    dist.all_reduce(torch.zeros(1, dtype=SIGNAL), group=group)


Number = Callable[[list[int]], int]  # by the bytes of each bucket


def of_calls(
    label: str,
    count: Callable[[Run, int], int],
    most: Number,
    least: Number | None = None,
    unit: str = "calls",
) -> Budget:
    """``count(run, rank)``. Without ``least``, there is one right number."""

    def used(run: Run) -> list[int]:
        return [count(run, rank) for rank in range(run.world_size)]

    def limit(case: Case) -> Limit:
        buckets = case.params["buckets"]
        return Limit(most(buckets), (least or most)(buckets))

    return Budget(label, used, limit, heading="collectives", unit=unit)


EXERCISE = OnRanks(
    answer="BucketedDDP",
    points=10,
    cases=(
        Case("2 ranks, an MLP", 2, {"widths": WIDTHS, "cap_bytes": 140_000}),
        Case("4 ranks, two layers tied", 4, TIED),
        Case("3 ranks, a frozen layer", 3, FROZEN),
    ),
    inputs=draw,
    drive=drive,
    # With the number of collectives and the bytes in all, the last two tell buckets from others.
    budgets=(
        shared.WITHIN_FIVE_PERCENT,
        of_calls(
            "one collective for each bucket and step",
            lambda run, rank: len(bucket_calls.collectives(run, rank)),
            lambda buckets: STEPS * len(buckets),
        ),
        of_calls(  # only the bucket of the last gradient has to wait for it
            "all but one bucket start before the last gradient",
            bucket_calls.started_early,
            lambda buckets: STEPS * len(buckets),
            lambda buckets: STEPS * (len(buckets) - 1),
        ),
        of_calls(
            "the largest bucket is that of the spec",
            lambda run, rank: max(bucket_calls.sizes(run, rank), default=0),
            max,
            unit="B",
        ),
        of_calls(
            "the first bucket is that of the spec",
            lambda run, rank: next(iter(bucket_calls.sizes(run, rank)), 0),
            lambda buckets: buckets[0],
            unit="B",
        ),
    ),
    allows=frozenset({"all_reduce"}),
    signs=(
        bucket_calls.waits_in_a_hook,
        bucket_calls.never_full,
        bucket_calls.works_once,
        bucket_calls.wrong_buckets,
        NAMED,
        bucket_calls.right_in_wrong_places,
        bucket_calls.starts_late,
    ),
)
