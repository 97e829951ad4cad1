"""BucketedDDP: gradients averaged bucket by bucket while backward runs.

The last rank is always late: it starts its backward when all others have finished theirs.  An
answer that waits for a collective inside a hook waits for that rank, which waits for it: a hang
that the checker recognizes, whatever the machine's speed.

When backward reaches the first layer, its gradient is multiplied by a factor for each sample, which
the checker holds back until it has counted the bytes sent so far.  So before the last gradients can
be computed, the late rank must have sent all buckets that do not contain them.

In some cases a second model is wrapped and trained at the same time, by another instance.  The late
rank starts the second model's backward after its finish() for the first, the others before.  An
instance that waits for the other one's all-reduces waits for that rank, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.exercise import Budget, Case, Limit, Plain
from autograder.exercise.budget import CHECKSUM
from autograder.exercises.common import normal
from autograder.exercises.lab02_dp_vs_ddp import bucket_calls, shared
from autograder.exercises.lab02_dp_vs_ddp.bucket_calls import (
    BACKWARD,
    BARRIER_DTYPE,
    GRADIENT,
    SECOND,
)
from autograder.exercises.lab02_dp_vs_ddp.shared import (
    after_step,
    build,
    build_with,
    first_trainable,
    is_compared,
    sgd_step,
    steps_in,
    trainable,
)
from autograder.guest import growth
from autograder.guest.moments import note, withhold_in_backward
from shardlab import measure
from shardlab.run import Run

# In each case, forward order, ignoring the cap and exceeding it all give different buckets.
SQUARE = [160, 160, 160, 160, 32]
# The first bucket, from the second layer's weight on, has exactly the cap's bytes.
FULL = {"widths": [64, 256, 256, 128, 32], "cap_bytes": 148_096, "steps": growth.STEPS}
# Layer 2 is used first, so gradients arrive in a different order from the buckets', and the first
# bucket, which has layer 2's bias, is complete after the second one.
TIED = {"widths": SQUARE, "tied": [0, 2], "used": [2, 0, 1, 3], "cap_bytes": 120_000}
# The first bucket has more than 1 MiB, which is PyTorch's cap for it, not the task's.
BEYOND_1_MIB = {"widths": [544, 256, 512, 512, 16, 16], "frozen": 3, "cap_bytes": 1_080_000}
UNKNOWN = 2**62  # bytes, if this system cannot count them
FACTORS = "factors of the first layer's gradient"
# The second model's cap: the bias, its last parameter, is larger.
FROZEN = {**BEYOND_1_MIB, SECOND: 2}


def draw(case: Case, rng: np.random.Generator) -> list[Plain]:
    inputs = shared.draw(case, rng, shared.draw_state(case, rng))
    for given in inputs:
        factors = rng.uniform(0.5, 2.0, size=(len(given["batches"]), shared.SAMPLES))
        given[FACTORS] = list(torch.from_numpy(factors).float())
        if SECOND in case.params:
            given[SECOND] = normal(rng, 1, 4)
    return inputs


def drive(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    model = build_with(case, given["state"])
    for parameter in trainable(model):  # this hook runs before the student's
        parameter.register_post_accumulate_grad_hook(lambda _: note(GRADIENT))
    withhold_in_backward(first_trainable(model), FACTORS)
    own_group = dist.new_group()
    wrapped = subject(model, case.params["cap_bytes"])
    second = SecondModel(subject, given[SECOND], case) if SECOND in given else None
    late = dist.get_rank() == case.world_size - 1
    kept, output = growth.Growth({"self": wrapped, "model": model}), dict[str, Plain]()
    for step, (inputs, targets) in enumerate(given["batches"]):
        model.zero_grad()
        loss = wrapped(inputs, targets)
        if late:
            barrier(own_group)
        with measure(BACKWARD):
            loss.backward()
        if not late:
            barrier(own_group)
        if second and not late:
            second.backward()
        wrapped.finish()
        if second:
            barrier(own_group)
            if late:
                second.backward()
            second.finish()
        sgd_step(model)
        kept.after(step)
        if is_compared(step, case):
            output[f"step {step}"] = after_step(model)
    if second:
        output[SECOND] = second.model.weight.grad
    return output | {"grows": kept.found()}


class SecondModel:
    """Its weight's gradient equals its inputs.  It is wrapped while the first one is in flight."""

    def __init__(self, subject: Callable[..., Any], inputs: torch.Tensor, case: Case) -> None:
        self.subject, self.inputs, self.cap_bytes = subject, inputs, case.params[SECOND]
        self.model = torch.nn.Linear(inputs.shape[1], 1)
        self.wrapped: Any = None

    def backward(self) -> None:
        with measure(SECOND):
            if self.wrapped is None:
                self.wrapped = self.subject(self.model, self.cap_bytes)
            self.model.zero_grad()
            self.wrapped(self.inputs).sum().backward()

    def finish(self) -> None:
        with measure(SECOND):
            self.wrapped.finish()


def barrier(group: Any) -> None:
    dist.all_reduce(torch.zeros(1, dtype=BARRIER_DTYPE), group=group)


def equal_to_spec(label: str, number: Callable[[list[int]], int], unit: str) -> Budget:
    """``number`` of the bytes of a rank's collectives equals that of the spec's buckets."""

    def used(run: Run) -> list[int]:
        by_rank = (bucket_calls.collectives(run, rank) for rank in range(run.world_size))
        return [number([call.bytes for call in calls]) for calls in by_rank]

    def limit(case: Case) -> Limit:
        wanted = steps_in(case) * number(case.params["buckets"])
        return Limit(wanted, wanted)

    return Budget(label, used, limit, "collectives", unit)


def squares(sizes: list[int]) -> int:
    return sum(size**2 for size in sizes)


def when_complete(case: Case) -> Limit:
    """`moments_before`, if each all-reduce starts before the gradient after those of its bucket."""
    each_step, after = len(trainable(build(case))) + 1, case.params["complete_after"]
    return Limit(sum(step * each_step + n for step in range(steps_in(case)) for n in after))


def sent_early(run: Run) -> list[int]:
    """By the late rank, at each time it got a factor, added up; 0 for the other ranks."""
    counts = run.sent_before[-1].get(FACTORS, ())
    early = UNKNOWN if None in counts else sum(filter(None, counts))
    return [0] * (run.world_size - 1) + [early]


ON_THE_WIRE = Budget(
    "all but the first layer's buckets are sent before its gradient is known",
    sent_early,
    heading="sent early",
    from_outside=True,
    contradicts="recorded collectives in backward, but sent their bytes later",
)

# Together with the number of collectives and the total bytes, the squares identify the buckets.
BUDGETS = (
    shared.WITHIN_FIVE_PERCENT,
    equal_to_spec("one collective for each bucket and step", len, "calls"),
    Budget(
        "each starts in the hook that completes its bucket",
        bucket_calls.moments_before,
        when_complete,
        "collectives",
        CHECKSUM,
    ),
    equal_to_spec("the buckets' sizes equal the spec's", squares, CHECKSUM),
    ON_THE_WIRE,
)

EXERCISE = shared.OfSteps(
    answer="BucketedDDP",
    points=10,
    cases=(
        Case("2 ranks, an MLP", 2, FULL),
        Case("4 ranks, two layers tied", 4, TIED),
        Case("2 ranks, a frozen layer, two models", 2, FROZEN),
    ),
    inputs=draw,
    withheld=FACTORS,
    drive=drive,
    kept_from_ranks=frozenset({"buckets", "complete_after"}),
    budgets=BUDGETS,
    allows=frozenset({"all_reduce"}),
    rules=shared.RULES,
    signs=(
        bucket_calls.waits_in_backward,
        bucket_calls.waits_for_the_second_model,
        bucket_calls.uses_none,
        bucket_calls.wrong_buckets,
    ),
)
