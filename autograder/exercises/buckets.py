"""BucketedDDP: gradients averaged bucket by bucket while backward runs, and what goes wrong.

The last rank is always late: it starts its backward when all others have ended theirs.  An answer
that waits for a collective inside a hook waits for that rank, which waits for it: a hang that has
a name, whatever the machine's speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autograder.exercise import Budget, Case, Plain
from autograder.exercise.kept_back import by_case, kept_back
from autograder.exercises.data_parallel import (
    SMALL_GPT,
    STEPS,
    apply_gradient,
    build,
    build_with,
    flat_gradients,
    flat_parameters,
    one_process,
    parameter_bytes,
    trainable,
)
from shardlab import measure
from shardlab.run import Call, Run

GRADIENT, BACKWARD = "gradient", "backward"
SIGNAL = torch.uint8  # of our own collective: no gradient has this dtype


# ---- which parameters share a bucket -------------------------------------------------------------


def bucket_bytes(parameters: Sequence[nn.Parameter], cap_bytes: int) -> list[int]:
    """Bytes of each bucket, filled in the order given; a parameter above the cap has its own."""
    buckets: list[int] = []
    for parameter in parameters:
        if buckets and buckets[-1] + parameter.nbytes <= cap_bytes:
            buckets[-1] += parameter.nbytes
        else:
            buckets.append(parameter.nbytes)
    return buckets


def buckets_of(case: Case) -> list[int]:
    return bucket_bytes(trainable(build(case))[::-1], case.params["cap_bytes"])


def cases() -> tuple[Case, ...]:
    """In each, buckets in forward order, without a cap, or filled above it, are other buckets."""
    widths, square = [64, 256, 256, 128, 32], [160, 160, 160, 160, 32]
    tied = {"widths": square, "tied": [0, 2], "cap_bytes": 120_000}
    frozen = {"widths": widths, "frozen": 2, "cap_bytes": 270_000}
    both = {"widths": [160, *square], "tied": [1, 2], "frozen": 0, "cap_bytes": 103_800}
    return (
        Case("2 ranks, an MLP", 2, {"widths": widths, "cap_bytes": 140_000}),
        Case("4 ranks, two layers tied", 4, tied),
        Case("3 ranks, a frozen layer", 3, frozen),
        Case("3 ranks, a GPT", 3, {"gpt": SMALL_GPT, "cap_bytes": 200_000}, hidden=True),
        Case("5 ranks, tied and frozen", 5, both, hidden=True),
    )


# ---- on a rank ----------------------------------------------------------------------------------


def drive_bucketed(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    model = build_with(case, given["state"])
    for parameter in trainable(model):
        parameter.register_post_accumulate_grad_hook(mark)  # ours runs before the student's
    aside = dist.new_group()
    wrapped = subject(model, case.params["cap_bytes"])
    late = dist.get_rank() == case.world_size - 1
    gradients, parameters = [], []
    for inputs, targets in given["batches"]:
        model.zero_grad()
        loss = wrapped(inputs, targets)
        if late:
            meet(aside)
        with measure(BACKWARD):
            loss.backward()
        if not late:
            meet(aside)
        wrapped.finish()
        gradients.append(flat_gradients(model))
        apply_gradient(model)
        parameters.append(flat_parameters(model).clone())
    return {"gradients": gradients, "parameters": parameters}


def mark(parameter: Tensor) -> None:
    """Leaves in the log when this gradient was there."""
    with measure(GRADIENT):
        pass


def meet(group: Any) -> None:
    dist.all_reduce(torch.zeros(1, dtype=SIGNAL), group=group)


def expect_bucketed(case: Case, inputs: Any) -> list[Plain]:
    trained = one_process(case, inputs)
    wanted = {"gradients": trained.gradients, "parameters": trained.parameters}
    return [wanted] * case.world_size


# ---- budgets ------------------------------------------------------------------------------------


def collectives(run: Run, rank: int) -> list[Call]:
    """The student's, in the order of their start."""
    ours = str(SIGNAL).removeprefix("torch.")
    return [
        call
        for call in run.calls
        if call.rank == rank and call.op == "all_reduce" and call.dtype != ours
    ]


def started_early(run: Run, rank: int) -> int:
    """How many collectives a rank had started in all before a backward's last gradient came."""
    blocks = [block for block in run.traffic.blocks if block.rank == rank]
    early = 0
    for backward in (block for block in blocks if block.label == BACKWARD):
        came = [
            block.start_s
            for block in blocks
            if block.label == GRADIENT and backward.start_s <= block.start_s <= backward.end_s
        ]
        early += sum(
            backward.start_s <= call.start_s < max(came, default=0.0)
            for call in collectives(run, rank)
        )
    return early


def on_each_rank(count: Callable[[Run, int], int]) -> Callable[[Run], list[int]]:
    return lambda run: [count(run, rank) for rank in range(run.world_size)]


@kept_back(by_case)
def ideal_bytes(case: Case) -> float:
    n = case.world_size
    return STEPS * 2 * (n - 1) / n * parameter_bytes(case, only_trainable=True)


def every_rank(value: Callable[[Case], float]) -> Callable[[Case], list[float]]:
    return lambda case: [value(case)] * case.world_size


BYTES = Budget(
    "sends ≤ 1.05 × ideal bytes per rank",
    limit=every_rank(lambda case: 1.05 * ideal_bytes(case)),
    used=lambda run: run.traffic.sent_by_rank.tolist(),
    least=every_rank(lambda case: 0.95 * ideal_bytes(case)),
)
ONE_FOR_EACH_BUCKET = Budget(
    "one collective for each bucket and step",
    limit=every_rank(lambda case: STEPS * len(buckets_of(case))),
    used=on_each_rank(lambda run, rank: len(collectives(run, rank))),
    least=every_rank(lambda case: STEPS * len(buckets_of(case))),
    heading="collectives",
    unit="calls",
)
# Only the bucket of the last gradient has to wait for it.
BEFORE_THE_LAST_GRADIENT = Budget(
    "all but one bucket start before the last gradient",
    limit=every_rank(lambda case: STEPS * len(buckets_of(case))),
    used=on_each_rank(started_early),
    least=every_rank(lambda case: STEPS * (len(buckets_of(case)) - 1)),
    heading="collectives",
    unit="calls",
)
# With the number of collectives and the bytes in all, these two tell buckets from other buckets.
THE_LARGEST_BUCKET = Budget(
    "the largest bucket is that of the spec",
    limit=every_rank(lambda case: max(buckets_of(case))),
    used=on_each_rank(lambda run, rank: max((c.bytes for c in collectives(run, rank)), default=0)),
    least=every_rank(lambda case: max(buckets_of(case))),
    heading="collectives",
)
THE_FIRST_BUCKET = Budget(
    "the first bucket is that of the spec",
    limit=every_rank(lambda case: buckets_of(case)[0]),
    used=on_each_rank(lambda run, rank: next((c.bytes for c in collectives(run, rank)), 0)),
    least=every_rank(lambda case: buckets_of(case)[0]),
    heading="collectives",
)
