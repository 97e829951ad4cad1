"""Lab 04: an AdamW whose states are sharded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from autograder.exercise import Attempt, Budget, Case, Exercise, Finding, Plain
from autograder.exercise.compare import equal
from autograder.exercises.outputs import finished
from autograder.exercises.private import BEGUN, mark, no_more_than_tensors
from autograder.exercises.zero import (
    ADAM_BYTES,
    FLOAT_BYTES,
    HELD,
    LARGE_BYTES,
    NEAR,
    WITHIN,
    Rule,
    as_if,
    dear_call,
    draw_batch,
    draw_layers,
    flatten,
    live_at,
    loss_of,
    mean,
    mlp,
    not_padded,
    padded_bytes,
    shard_bounds,
    sizes_of,
    traffic,
    with_right_bounds,
)

STEPS = 3

# A large eps: AdamW divides a gradient by its own size, so that with the usual 1e-8 a sum of
# gradients does as well as their mean, and a gradient of 1e-9 counts as much as one of 1.
ADAMW = {"lr": 0.05, "betas": (0.8, 0.9), "eps": 0.5, "weight_decay": 0.1}


def draw_training(case: Case, rng: np.random.Generator) -> list[Plain]:
    layers = draw_layers(case, rng)
    return [
        {"layers": layers, "batches": [draw_batch(case, rng, scale=4) for _ in range(STEPS)]}
        for _ in range(case.world_size)
    ]


def drive_zero1(subject: Any, given: Any, case: Case) -> Plain:
    model = mlp(given.pop("layers"))
    mark(BEGUN)
    optimizer = with_right_bounds(subject)(list(model.parameters()), **ADAMW)
    while given["batches"]:
        model.zero_grad()
        loss_of(model, given["batches"].pop(0)).backward()
        optimizer.step()
    model.zero_grad()
    mark(HELD)
    return {"parameters": [parameter.detach().clone() for parameter in model.parameters()]}


def trained(inputs: Sequence[Any], rule: Rule = mean, adam: type = torch.optim.AdamW) -> Plain:
    """One process: the ranks' gradients at the same parameters, put together by ``rule``."""
    model = mlp([tensor.clone() for tensor in inputs[0]["layers"]])
    parameters = list(model.parameters())
    optimizer = adam(parameters, **ADAMW)
    for step in range(STEPS):
        gradients = []
        for given in inputs:
            loss = loss_of(model, given["batches"][step])
            gradients.append(flatten(torch.autograd.grad(loss, parameters), 1))
        pieces = rule(torch.stack(gradients)).split([each.numel() for each in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter).clone()
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


def expect_zero1(case: Case, inputs: Any) -> list[Plain]:
    return [{"parameters": trained(inputs)}] * case.world_size


def zero1_as_if(attempt: Attempt, rule: Rule) -> list[Plain]:
    return [trained(attempt.inputs, rule)] * attempt.case.world_size


def never_gathers(attempt: Attempt) -> Finding | None:
    """All but a rank's own slice is as it was."""
    bounds = shard_bounds(sizes_of(attempt.case), attempt.case.world_size)
    for rank, output in finished(attempt):
        before, after, wanted = (
            flatten(tensors, 1)
            for tensors in (
                attempt.inputs[rank]["layers"],
                output["parameters"],
                attempt.expected[rank]["parameters"],
            )
        )
        others = torch.ones(len(before), dtype=torch.bool)
        others[slice(*bounds[rank])] = False
        if equal(before[others], after[others]) and not equal(wanted[others], after[others], NEAR):
            if equal(before, after):
                return Finding(f"rank {rank}", "changes no parameter of the model")
            return Finding(
                f"rank {rank}",
                "updates its own slice and never sees the others': all-gather them after the step",
            )
    return None


def decays_as_adam(attempt: Attempt) -> Finding | None:
    if attempt.error:
        return None
    wrong = trained(attempt.inputs, adam=torch.optim.Adam)
    if all(equal(wrong, output["parameters"], NEAR) for _, output in finished(attempt)):
        return Finding("every rank", "adds the decay to the gradient, as Adam does: AdamW does not")
    return None


def holds_too_much(attempt: Attempt) -> Finding | None:
    """States for everything, or a second copy of the slice beside its states."""
    elements = sum(sizes_of(attempt.case))
    of_slice = -(-elements // attempt.case.world_size)
    for spent in attempt.spent:
        for rank in spent.ranks_over:
            if spent.heading != "held by a rank":
                continue
            used, evidence = spent.used[rank], f"{spent.used[rank]:,} bytes"
            if used >= 0.98 * ADAM_BYTES * elements:
                mistake = "holds Adam's states for all parameters: give AdamW its own slice alone"
            elif used <= WITHIN * (ADAM_BYTES + FLOAT_BYTES) * of_slice:
                mistake = (
                    "keeps a second copy of its slice: let AdamW work on a view of the flat buffer"
                )
            else:
                continue
            return Finding(f"rank {rank}", mistake, f"{evidence}, {spent.limit[rank]:,} are enough")
    return None


def states_limit(case: Case) -> list[float] | None:
    """Adam's two states of one slice; no limit where a few scalars would show."""
    start, stop = shard_bounds(sizes_of(case), case.world_size)[0]
    if stop - start < 10_000:
        return None
    return [WITHIN * ADAM_BYTES * (stop - start)] * case.world_size


def states_bytes(case: Case) -> float | None:
    limit = states_limit(case)
    return limit[0] if limit and FLOAT_BYTES * sum(sizes_of(case)) >= LARGE_BYTES else None


def two_exchanges(case: Case) -> list[int]:
    """Of each step: the gradients reduce-scattered, the parameters gathered."""
    return [padded_bytes(sum(sizes_of(case)), case.world_size)] * 2 * STEPS


ZERO1_ADAMW = Exercise(
    name="zero.Zero1AdamW",
    points=5,
    cases=(
        Case("4 ranks, 99 parameters", 4, {"widths": [6, 8, 3, 4]}),
        Case("2 ranks, 58 parameters", 2, {"widths": [4, 6, 4]}),
        Case("4 ranks, 1 MiB of parameters", 4, {"widths": [512, 511]}, weight=2),
        Case("3 ranks, 206 parameters", 3, {"widths": [7, 10, 9, 3]}, hidden=True),
        Case("5 ranks, fewer parameters than ranks", 5, {"widths": [1, 1]}, hidden=True),
        Case("4 ranks, 8 MB of parameters", 4, {"widths": [820] * 4}, hidden=True, weight=2),
    ),
    draw=draw_training,
    drive=drive_zero1,
    expect=expect_zero1,
    tolerance=NEAR,
    budgets=(
        traffic("sends ≤ 1.02 × ideal bytes per rank", two_exchanges),
        Budget(
            "holds ≤ 1.02 × 8 bytes for each element of a slice",
            limit=states_limit,
            used=lambda run: live_at(run, HELD, "optimizer", "activations", "other"),
            heading="held by a rank",
        ),
        no_more_than_tensors(HELD, states_bytes),
    ),
    diagnoses=(
        not_padded,
        never_gathers,
        as_if("parameters", zero1_as_if, NEAR),
        decays_as_adam,
        dear_call,
        holds_too_much,
    ),
    memory=True,
)
