"""BucketedDDP: gradients averaged bucket by bucket while backward runs.

The last rank is always late: it starts its backward when all others have ended theirs.  An answer
that waits for a collective inside a hook waits for that rank, which waits for it: a hang that has
a name, whatever the machine's speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from autograder.exercise import NAMED, Budget, Case, Limit, OnRanks, Plain
from autograder.exercises.lab02_dp_vs_ddp import bucket_calls, shared
from autograder.exercises.lab02_dp_vs_ddp.bucket_calls import BACKWARD, GRADIENT, SIGNAL
from autograder.exercises.lab02_dp_vs_ddp.shared import after_step, build_with, descend, trainable
from autograder.guest.moments import mark
from shardlab import measure
from shardlab.run import Run

# In each case, buckets in forward order, without a cap, or filled above it, are other buckets.
WIDTHS, SQUARE = [64, 256, 256, 128, 32], [160, 160, 160, 160, 32]
TIED = {"widths": SQUARE, "tied": [0, 2], "cap_bytes": 120_000}
FROZEN = {"widths": WIDTHS, "frozen": 2, "cap_bytes": 270_000}


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
        descend(model)
        output[f"step {step}"] = after_step(model)
    return output


def meet(group: Any) -> None:
    dist.all_reduce(torch.zeros(1, dtype=SIGNAL), group=group)


def as_in_the_spec(
    label: str, number: Callable[[list[int]], int], unit: str = "B", times: int = 1
) -> Budget:
    """``number`` of the bytes of a rank's collectives is that of the bytes of its buckets."""

    def used(run: Run) -> list[int]:
        by_rank = (bucket_calls.collectives(run, rank) for rank in range(run.world_size))
        return [number([call.bytes for call in calls]) for calls in by_rank]

    def limit(case: Case) -> Limit:
        wanted = times * number(case.params["buckets"])
        return Limit(wanted, wanted)

    return Budget(label, used, limit, "collectives", unit)


def all_but_one(case: Case) -> Limit:
    """The bucket of the last gradient has to wait for it."""
    buckets = len(case.params["buckets"])
    return Limit(shared.STEPS * buckets, shared.STEPS * (buckets - 1))


# With the number of collectives and the bytes in all, the last two tell buckets from others.
BUDGETS = (
    shared.WITHIN_FIVE_PERCENT,
    as_in_the_spec("one collective for each bucket and step", len, "calls", shared.STEPS),
    Budget(
        "all but one bucket start before the last gradient",
        bucket_calls.started_early,
        all_but_one,
        "collectives",
        "calls",
    ),
    as_in_the_spec("the largest bucket is that of the spec", lambda sizes: max(sizes, default=0)),
    as_in_the_spec("the first bucket is that of the spec", lambda sizes: (sizes or [0])[0]),
)

EXERCISE = OnRanks(
    answer="BucketedDDP",
    points=10,
    cases=(
        Case("2 ranks, an MLP", 2, {"widths": WIDTHS, "cap_bytes": 140_000}),
        Case("4 ranks, two layers tied", 4, TIED),
        Case("3 ranks, a frozen layer", 3, FROZEN),
    ),
    inputs=lambda case, rng: shared.draw(case, rng, shared.draw_state(case, rng)),
    drive=drive,
    kept_from_ranks=frozenset({"buckets", "forward_buckets"}),  # the answer's own
    budgets=BUDGETS,
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
