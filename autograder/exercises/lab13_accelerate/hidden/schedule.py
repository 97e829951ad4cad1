from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import with_random_delays
from autograder.exercises.lab13_accelerate.schedule import case_of
from autograder.exercises.lab13_accelerate.shared import numbered

NO_WARM_UP = "3 ranks, no warm-up, the loader ends between two steps"
CASES = (
    case_of("2 ranks, a short warm-up", 2, 12, batches=7, warmup_steps=1),
    with_random_delays(case_of(NO_WARM_UP, 3, 6, accumulation=2, batches=5, warmup_steps=0)),
    case_of(
        "4 ranks, split_batches, accumulation of 3",
        4,
        7,
        accumulation=3,
        split_batches=True,
        batches=8,
        warmup_steps=1,
    ),
)
BOUNDARIES = {
    "divides": "2 ranks",
    "does not divide": "4 ranks, accumulation of 2, 5 batches",
    "one rank": "one rank, no warm-up",
    "more ranks than elements": "not tested: a learning rate has no elements",
    "no warm-up": NO_WARM_UP,
}

Factor = Callable[[Case], float]  # for numbers of steps


def prepared(case: Case) -> float:
    """Steps that a prepared scheduler makes for each optimizer step."""
    return 1 if case.params["split_batches"] else case.world_size


def last_micro_batches(case: Case) -> list[int]:
    """Micro-batches that end an optimizer step, including the last of each epoch, numbered over all
    epochs."""
    batches, every = case.params["batches"], case.params["accumulation"]
    return [
        epoch * batches + i
        for epoch in range(case.params["epochs"])
        for i in range(batches)
        if (i + 1) % every == 0 or i + 1 == batches
    ]


def reference(
    case: Case,
    inputs: Any,
    warmup: Factor = prepared,
    total: Factor = prepared,
    is_prepared: bool = True,
) -> Plain:
    """``warmup``, ``total``: their factors. If it is not prepared, the scheduler makes one step for
    each micro-batch."""
    w, t = case.params["warmup_steps"] * warmup(case), case.params["total_steps"] * total(case)

    def rate(step: float) -> float:
        return step / w if step < w else max(0.0, (t - step) / (t - w))

    if w >= t:
        return None
    ends = last_micro_batches(case)
    done = [i * prepared(case) for i in range(len(ends))] if is_prepared else ends
    return numbered("rates", [inputs[0] * rate(steps) for steps in done])


def one(case: Case) -> float:
    return 1


def ranks(case: Case) -> float:
    return case.world_size


def with_accumulation(case: Case) -> float:
    return prepared(case) * float(case.params["accumulation"])


MISTAKES = {
    "runs through its schedule too fast by a factor of num_processes: the prepared scheduler makes "
    "num_processes steps for each optimizer step, so multiply warm-up and total by it": partial(
        reference, warmup=one, total=one
    ),
    "multiplies only one of warm-up and total by num_processes: both count the scheduler's steps": (
        partial(reference, warmup=one),
        partial(reference, total=one),
    ),
    # Before the next one, which has the same rates with split_batches, and is named by other cases.
    "multiplies by num_processes even with split_batches: there the prepared scheduler makes one "
    "step for each optimizer step": partial(reference, warmup=ranks, total=ranks),
    "multiplies the steps and does not prepare the scheduler: only a prepared one makes "
    "num_processes steps at a time": partial(reference, is_prepared=False),
    "steps at every micro-batch: a scheduler that is not prepared does not know about "
    "accumulation": partial(reference, warmup=one, total=one, is_prepared=False),
    "also multiplies by the accumulation: the prepared scheduler waits for the optimizer's step": (
        partial(reference, warmup=with_accumulation, total=with_accumulation)
    ),
}
