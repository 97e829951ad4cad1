from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab11_deepspeed_accelerate.schedule import case_of

CASES = (
    case_of("2 ranks, a short warm-up", 2, batches=7, warmup_steps=1, total_steps=12),
    with_random_delays(
        case_of(
            "3 ranks, no warm-up, the loader ends between two steps",
            3,
            accumulation=2,
            batches=5,
            warmup_steps=0,
            total_steps=6,
        )
    ),
    case_of(
        "4 ranks, split_batches, accumulation of 3",
        4,
        accumulation=3,
        split_batches=True,
        batches=8,
        warmup_steps=1,
        total_steps=7,
    ),
)
BOUNDARIES = {
    "divides": "2 ranks",
    "does not divide": "4 ranks, accumulation of 2, 5 batches",
    "one rank": "one rank, accumulation of 3",
    "more ranks than elements": "not tested: a learning rate has no elements",
    "no warm-up": "3 ranks, no warm-up, the loader ends between two steps",
}
EQUIVALENT_ANSWERS: tuple[EquivalentAnswer, ...] = ()

# A factor for numbers of steps
Factor = Callable[[Case], float]


def one(case: Case) -> float:
    return 1


def ranks(case: Case) -> float:
    return case.world_size


def prepared(case: Case) -> float:
    """Steps that a prepared scheduler makes for each optimizer step."""
    return 1 if case.params["split_batches"] else case.world_size


def with_accumulation(case: Case) -> float:
    return prepared(case) * float(case.params["accumulation"])


def divided(case: Case) -> float:
    return 1 / prepared(case)


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
    steps: Factor = prepared,
    every_micro_batch: bool = False,
) -> Plain:
    """``warmup``, ``total``: their factors. ``steps``: scheduler steps per optimizer step."""
    w, t = case.params["warmup_steps"] * warmup(case), case.params["total_steps"] * total(case)

    def rate(step: float) -> float:
        return step / w if step < w else max(0.0, (t - step) / (t - w))

    if w >= t:
        return None
    ends = last_micro_batches(case)
    before = ends if every_micro_batch else range(len(ends))
    return {"rates": [inputs[0] * rate(done * steps(case)) for done in before]}


def by(**how: Any) -> Callable[[Case, Any], Plain]:
    return partial(reference, **how)


MISTAKES = {
    "runs through its schedule too fast by a factor of num_processes: the prepared scheduler makes "
    "num_processes steps for each optimizer step, so multiply warm-up and total by it": (
        by(warmup=one, total=one)
    ),
    "multiplies the total, but not the warm-up: it is over after 1/num_processes of its optimizer "
    "steps": by(warmup=one),
    "multiplies the warm-up, but not the total": by(total=one),
    # Before the next one, which has the same rates with split_batches, and is named by other cases.
    "multiplies by num_processes even with split_batches: there the prepared scheduler makes one "
    "step for each optimizer step": by(warmup=ranks, total=ranks),
    "multiplies the steps and does not prepare the scheduler: only a prepared one makes "
    "num_processes steps at a time": (
        by(steps=one, every_micro_batch=True),
        by(warmup=ranks, total=ranks, steps=one, every_micro_batch=True),
    ),
    "steps at every micro-batch: a scheduler that is not prepared, or not bound to the optimizer's "
    "steps, does not know about accumulation": (
        by(warmup=one, total=one, steps=one, every_micro_batch=True),
        by(every_micro_batch=True),
    ),
    "also multiplies by the accumulation: the prepared scheduler waits for the optimizer's step": (
        by(warmup=with_accumulation, total=with_accumulation),
        by(
            warmup=lambda case: case.world_size * case.params["accumulation"],
            total=lambda case: case.world_size * case.params["accumulation"],
        ),
    ),
    "divides the steps by num_processes: the prepared scheduler needs more of them": by(
        warmup=divided, total=divided
    ),
}
