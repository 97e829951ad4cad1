"""Stage 1: an AdamW whose states are sharded."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn.utils import parameters_to_vector

from autograder.exercise import NAMED_MISTAKES, Attempt, Case, OnRanks, Plain
from autograder.exercise.signs import MistakeText, is_over, on_each_rank
from autograder.exercises.lab04_zero import shared
from autograder.exercises.lab04_zero.shared import AT_END, loss_of, mlp, with_reference_bounds
from autograder.guest.moments import START, mark

STEPS = 3
ADAM_BYTES = 8  # two states in fp32

# A large eps: AdamW divides a gradient by its own magnitude, so with the usual 1e-8 a sum of
# gradients gives the same update as their mean, and a gradient of 1e-9 the same as one of 1.
ADAMW = {"lr": 0.05, "betas": (0.8, 0.9), "eps": 0.5, "weight_decay": 0.1}


def drive(subject: Any, given: Any, case: Case) -> Plain:
    model = mlp(given.pop("layers"))
    mark(START)
    optimizer = with_reference_bounds(subject, case)(list(model.parameters()), **ADAMW)
    while given["batches"]:
        model.zero_grad()
        loss_of(model, given["batches"].pop(0)).backward()
        optimizer.step()
    model.zero_grad()
    mark(AT_END)
    return {"parameters": [parameter.detach().clone() for parameter in model.parameters()]}


def states_bytes(case: Case) -> int:
    """Adam's two states for one slice."""
    return ADAM_BYTES * shared.slice_elements(sum(shared.sizes_of(case)), case)


def two_exchanges(case: Case) -> list[int]:
    """Per step: the gradients reduce-scattered, the parameters gathered."""
    elements = case.world_size * shared.slice_elements(sum(shared.sizes_of(case)), case)
    return [shared.FLOAT_BYTES * elements] * 2 * STEPS


HELD_STATES = shared.live(
    "holds ≤ 1.02 × 8 bytes per element of a slice",
    "held by a rank",
    lambda run: shared.live_at_end(run, "optimizer", "activations", "other"),
    states_bytes,
)


@on_each_rank
def never_gathers(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    """Only the rank's own slice has changed."""
    before = parameters_to_vector(attempt.inputs[rank]["layers"])
    after = parameters_to_vector(output["parameters"])
    changed = (~torch.isclose(before, after, rtol=shared.NEAR, atol=shared.NEAR)).nonzero()
    if not len(changed):
        return "changes no parameter of the model"
    start, stop = shared.bounds_by_length(attempt.case)[len(before)][rank]
    if start <= changed.min() and changed.max() < stop:
        return "updates its own slice but never gets the others': all-gather them after the update"
    return None


@on_each_rank
def holds_too_much(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    """States for everything, or a second copy of the slice in addition to its states."""
    if attempt.run is None or rank not in is_over(attempt, HELD_STATES.heading):
        return None
    used, needed = HELD_STATES.used(attempt.run)[rank], states_bytes(attempt.case)
    evidence = f"{used:,} bytes, {needed:,} are enough"
    if used >= 0.98 * ADAM_BYTES * sum(shared.sizes_of(attempt.case)):
        return "holds Adam's states for all parameters: give AdamW only its own slice", evidence
    if used <= shared.WITHIN * needed * (1 + shared.FLOAT_BYTES / ADAM_BYTES):
        mistake = "keeps a second copy of its slice: let AdamW work on a view of the flat buffer"
        return mistake, evidence
    return None


EXERCISE = OnRanks(
    answer="Zero1AdamW",
    points=5,
    cases=(
        Case("4 ranks, 99 parameters", 4, {"widths": [6, 8, 3, 4]}),
        Case("2 ranks, 58 parameters", 2, {"widths": [4, 6, 4]}),
        Case("4 ranks, 1 MiB of parameters", 4, {"widths": [512, 511]}, weight=2),
    ),
    inputs=partial(shared.draw_inputs, batches=STEPS, scale=4),
    drive=drive,
    tolerance=shared.NEAR,
    budgets=(
        shared.traffic(two_exchanges),
        HELD_STATES,
        shared.process_memory(AT_END, lambda case: shared.WITHIN * states_bytes(case)),
    ),
    signs=(shared.unpadded, never_gathers, NAMED_MISTAKES, shared.expensive, holds_too_much),
    memory=True,
)
