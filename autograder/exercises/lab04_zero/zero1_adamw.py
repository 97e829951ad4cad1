"""Stage 1: an AdamW whose states are sharded."""

from __future__ import annotations

from typing import Any

import numpy as np

from autograder.exercise import NAMED_MISTAKES, Case, OnRanks, Plain
from autograder.exercise.signs import keeps_growing, over_budget, raises
from autograder.exercises.common import FLOAT_BYTES
from autograder.exercises.lab04_zero import shared
from autograder.exercises.lab04_zero.shared import loss_of, mlp, with_reference_bounds
from autograder.guest.growth import Growth
from autograder.guest.moments import START, mark, mark_settled
from shardlab.run import Run

BETWEEN = "between steps"  # a moment: after some steps, once the gradients are freed
ADAM_BYTES = 8  # two states in fp32

# A large eps: AdamW divides a gradient by its own magnitude, so with the usual 1e-8 a sum of
# gradients gives the same update as their mean, and a gradient of 1e-9 the same as one of 1.
ADAMW = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 2.0, "weight_decay": 0.1}


def draw_batches(case: Case, rng: np.random.Generator) -> list[Plain]:
    """Memory is looked at after the first step, after the last, and after a drawn one."""
    steps = case.params["steps"]
    looked_at = [1, int(rng.integers(2, steps)), steps]
    drawn = shared.draw_inputs(case, rng, batches=steps)
    return [given | {"looked at": looked_at} for given in drawn]


def drive(subject: Any, given: Any, case: Case) -> Plain:
    # Copies are recorded: the inputs were in memory before recording began.
    model = mlp([tensor.clone() for tensor in given.pop("layers")])
    mark(START)
    optimizer = with_reference_bounds(subject, case)(list(model.parameters()), **ADAMW)
    step, looked_at, growth = 0, given.pop("looked at"), Growth({"self": optimizer})
    while given["batches"]:
        loss_of(model, given["batches"].pop(0)).backward()
        optimizer.step()
        model.zero_grad()
        growth.after(step)
        step += 1
        if step in looked_at:
            mark_settled(BETWEEN)
    parameters = [parameter.detach().clone() for parameter in model.parameters()]
    return {"parameters": parameters, "grows": growth.found()}


def slice_bytes(case: Case) -> int:
    return FLOAT_BYTES * shared.slice_elements(sum(shared.sizes_of(case)), case)


def states_bytes(case: Case) -> int:
    """Adam's two states for one slice."""
    return ADAM_BYTES // FLOAT_BYTES * slice_bytes(case)


def held_bytes(case: Case) -> float:
    """The states, and the slice's gradient, which may stay: a gradient is not a state."""
    return shared.WITHIN * states_bytes(case) + slice_bytes(case)


def two_exchanges(case: Case) -> list[int]:
    """Per step: the gradients reduce-scattered, the parameters gathered."""
    return [case.world_size * slice_bytes(case)] * 2 * case.params["steps"]


def more_parameters(run: Run) -> list[list[int]]:
    """By rank and step looked at: bytes of parameters in addition to the model's.

    A buffer that parameters once were views of counts as parameters.
    """
    models = [own[:1] or [0] for own in shared.live_after(run, START, "parameters")]
    after = shared.live_after(run, BETWEEN, "parameters")
    return [[each - model for each in own] for (model,), own in zip(models, after, strict=True)]


def more_gradients(run: Run) -> list[list[int]]:
    """By rank and step looked at: bytes of gradients in addition to the slice's, which may stay."""
    models = [own[:1] or [0] for own in shared.live_after(run, START, "parameters")]
    after = shared.live_after(run, BETWEEN, "gradients")
    own_bytes = [shared.WITHIN * model / len(models) + ADAM_BYTES for (model,) in models]
    pairs = zip(own_bytes, after, strict=True)
    return [[int(max(0, each - most)) for each in own] for most, own in pairs]


def held(run: Run) -> list[list[int]]:
    """By rank and step looked at: live bytes other than the model's parameters and gradients."""
    kept = shared.live_after(run, BETWEEN, "optimizer", "activations", "buckets", "other")
    return [
        [sum(each) for each in zip(*own, strict=True)]
        for own in zip(kept, more_parameters(run), more_gradients(run), strict=True)
    ]


HELD_STATES = shared.live(
    "holds ≤ 1.02 × 8 bytes per element of a slice",
    "held by a rank",
    lambda run: [max(after, default=0) for after in held(run)],
    states_bytes,
)


gathers_into_views = raises(
    r"\bview .*is being modified inplace",  # one of two messages of autograd
    "gathers into a view while gradients are recorded, because its slice requires one: gather "
    "own.detach(), or under torch.no_grad()",
)


EXERCISE = OnRanks(
    answer="Zero1AdamW",
    points=5,
    cases=(  # "steps" differ
        Case("5 ranks, fewer parameters than ranks", 5, {"widths": [1, 1], "steps": 11}),
        Case("2 ranks, 58 parameters", 2, {"widths": [4, 6, 4], "steps": 3}),
        Case("4 ranks, 1 MiB of parameters", 4, {"widths": [512, 511], "steps": 10}, weight=2),
    ),
    inputs=draw_batches,
    drive=drive,
    tolerance=shared.TOLERANCE,
    budgets=(
        shared.traffic(two_exchanges),
        HELD_STATES,
        shared.process_memory(BETWEEN, held_bytes),
    ),
    rules=(*shared.RULES, keeps_growing),
    signs=(
        gathers_into_views,
        NAMED_MISTAKES,
        shared.expensive,
        over_budget(
            HELD_STATES.heading,
            "holds more between steps than Adam's two states for its own slice, or keeps something "
            "of every step: no states and no second copy of all parameters, no gradients and no "
            "buffer of an exchange should stay, and the slice can be a view of the flat buffer",
        ),
    ),
    memory=True,
    kept_from_ranks=frozenset({"steps"}),
)
