"""Lab 04: a linear layer that is whole only while it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autograder.exercise import Attempt, Budget, Case, Exercise, Finding, Plain
from autograder.exercises.outputs import finished
from autograder.exercises.private import BEGUN, mark, mark_in_backward, no_more_than_tensors
from autograder.exercises.zero import (
    FLOAT_BYTES,
    GLOO_THREADS,
    LARGE_BYTES,
    NEAR,
    WITHIN,
    Rule,
    as_if,
    dear_call,
    differs,
    draw_batch,
    draw_layers,
    flatten,
    linear_of,
    mean,
    mlp,
    not_padded,
    padded_bytes,
    peak_in,
    sizes_of,
    slices_by_rank,
    traffic,
    with_right_bounds,
)
from shardlab.errors import RankError

BUILT = "after building"
IN_FORWARD, IN_BACKWARD = "between units in forward", "between units in backward"


def draw_units(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same layers everywhere; an input and a gradient of the output for each rank."""
    layers = draw_layers(case, rng)
    return [
        {"layers": list(layers), "ends": draw_batch(case, rng, scale=1)}
        for _ in range(case.world_size)
    ]


def drive_zero3(subject: Any, given: Any, case: Case) -> Plain:
    subject = with_right_bounds(subject)
    layers = given.pop("layers")
    mark(BEGUN)
    units: list[nn.Module] = []
    while layers:
        units += [subject(linear_of(layers.pop(0), layers.pop(0))), nn.Tanh()]
    model = nn.Sequential(*units[:-1])
    for unit in units[1:-1:2]:
        unit.register_forward_hook(lambda *_: mark(IN_FORWARD))
        mark_in_backward(unit, IN_BACKWARD)
    mark(BUILT)
    x, upstream = given["ends"]
    x.requires_grad_()
    y = model(x)
    y.backward(upstream)
    slices = []
    for unit in units[::2]:
        gradients = [parameter.grad for parameter in unit.parameters()]
        slices.append(gradients[0] if len(gradients) == 1 else f"{len(gradients)} parameters")
    return {"y": y.detach(), "x.grad": x.grad, "slices": slices}


def expect_zero3(case: Case, inputs: Any) -> list[Plain]:
    sides, slices = [], unit_slices(case, inputs)
    for given in inputs:
        model = mlp([tensor.clone() for tensor in given["layers"]])
        x = given["ends"][0].clone().requires_grad_()
        y = model(x)
        sides.append((y.detach(), torch.autograd.grad(y, x, given["ends"][1])[0]))
    return [
        {"y": y, "x.grad": x_grad, "slices": slices[rank]} for rank, (y, x_grad) in enumerate(sides)
    ]


def unit_slices(case: Case, inputs: Any, rule: Rule = mean) -> list[list[Tensor]]:
    """By rank: its slice of each layer's gradient, all ranks' put together by ``rule``."""
    by_rank = []
    for given in inputs:
        model = mlp([tensor.clone() for tensor in given["layers"]])
        y = model(given["ends"][0].detach())
        gradients = torch.autograd.grad(y, list(model.parameters()), given["ends"][1])
        pairs = zip(gradients[::2], gradients[1::2], strict=True)
        by_rank.append([flatten(pair, case.world_size) for pair in pairs])
    return slices_by_rank(by_rank, rule)


def zero3_as_if(attempt: Attempt, rule: Rule) -> list[Plain]:
    return list(unit_slices(attempt.case, attempt.inputs, rule))


def unit_bytes(case: Case) -> list[int]:
    return [padded_bytes(size, case.world_size) for size in sizes_of(case)]


def three_exchanges(case: Case) -> list[int]:
    """Of each unit: gathered in forward and in backward, its gradients reduce-scattered."""
    return unit_bytes(case) * 3


def live_limit(case: Case, units: int, slices: int) -> list[float] | None:
    """So many whole units at one time, so many times all slices, and the activations."""
    widths = case.params["widths"]
    if widths[0] < 100:
        return None
    sizes = unit_bytes(case)
    # Each layer's output, its tanh and their gradients, at most.
    activations = 4 * FLOAT_BYTES * sum(widths) * case.params.get("samples", 2)
    live = units * max(sizes) + slices * sum(sizes) / case.world_size + activations
    return [WITHIN * live] * case.world_size


def change_bytes(units: int, slices: int) -> Callable[[Case], float | None]:
    """What a process holds between two units, less all parameters, which it began with."""

    def change(case: Case) -> float | None:
        whole, most = sum(unit_bytes(case)), max(unit_bytes(case))
        if whole < LARGE_BYTES:
            return None
        return units * most + slices * whole / case.world_size - whole

    return change


def no_gradient(attempt: Attempt) -> Finding | None:
    for rank, output in finished(attempt):
        slices, wanted = output["slices"], attempt.expected[rank]["slices"]
        for got, right in zip(slices, wanted, strict=True):
            if isinstance(got, str):
                return Finding(
                    f"rank {rank}", "should have one parameter in each unit: its slice", got
                )
            if got is None:
                return Finding(
                    f"rank {rank}",
                    "ends without a gradient in its slice: autograd does not see through a "
                    "collective, so backward is yours to write",
                )
            if got.numel() != right.numel():
                return Finding(
                    f"rank {rank}",
                    "holds a parameter of another length than a slice: ⌈Ψ/N⌉ elements",
                    f"{got.numel():,}, expected {right.numel():,}",
                )
    return None


def frees_before_backward(attempt: Attempt) -> Finding | None:
    """Backward stopped, or computed with what is no longer there."""
    run, error = attempt.run, attempt.error
    if run is None:
        return None
    in_backward = any(phase.name == "forward" for rank in run.memory for phase in rank.phases)
    wrong = in_backward if isinstance(error, RankError) else differs(attempt, "x.grad", NEAR)
    rank = error.rank if isinstance(error, RankError) else 0
    gathers = sum(call.op.startswith("all_gather") and call.rank == rank for call in run.calls)
    if wrong and gathers == len(sizes_of(attempt.case)):
        return Finding(
            "every rank",
            "frees its units before backward and does not gather them again there",
            anyone="every rank",
        )
    return None


def keeps_units(attempt: Attempt) -> Finding | None:
    run = attempt.run
    over = [spent for spent in attempt.spent if spent.ranks_over and spent.heading in PEAKS]
    if attempt.error or run is None or not over:
        return None
    rank = over[0].ranks_over[0]
    sizes = unit_bytes(attempt.case)
    built = sum(run.memory[rank].at(BUILT).values())
    if built > sum(sizes) / attempt.case.world_size + max(sizes):
        mistake = (
            "keeps whole units from the start: a slice is a view, and a view keeps all of its "
            "tensor alive"
        )
    elif over[0].heading == PEAKS[0]:
        mistake = "has more than one unit live in forward: free each before the next is gathered"
    else:
        mistake = "has more than one unit live in backward: free each before the next is gathered"
    return Finding(f"rank {rank}", mistake)


PEAKS = ("live in forward", "live in backward")


def live_budget(label: str, heading: str, phase: str, units: int, slices: int) -> Budget:
    def limit(case: Case) -> list[float] | None:
        return live_limit(case, units, slices)

    return Budget(label, limit=limit, used=lambda run: peak_in(run, phase), heading=heading)


ZERO3_LINEAR = Exercise(
    name="zero.Zero3Linear",
    points=5,
    cases=(
        Case("4 ranks, one layer", 4, {"widths": [6, 5], "samples": 3}),
        Case("3 ranks, 3 layers", 3, {"widths": [4, 7, 5, 2]}),
        Case("4 ranks, 8 layers of 256 KiB", 4, {"widths": [256] * 9}, weight=2),
        Case("5 ranks, 2 layers", 5, {"widths": [3, 4, 2], "samples": 4}, hidden=True),
        Case("2 ranks, 3 layers", 2, {"widths": [5, 8, 8, 3]}, hidden=True),
        Case("4 ranks, 24 layers of 362", 4, {"widths": [362] * 25}, hidden=True, weight=2),
    ),
    draw=draw_units,
    drive=drive_zero3,
    expect=expect_zero3,
    tolerance=NEAR,
    budgets=(
        traffic("sends ≤ 1.02 × ideal bytes per rank", three_exchanges),
        live_budget(
            "one unit live in forward", PEAKS[0], "forward", units=1 + GLOO_THREADS, slices=1
        ),
        # Of the unit at work two: whole and its gradient, or the latter as sent and as received.
        live_budget(
            "one unit live in backward", PEAKS[1], "backward", units=2 + 2 * GLOO_THREADS, slices=2
        ),
        no_more_than_tensors(IN_FORWARD, change_bytes(units=1, slices=1)),
        no_more_than_tensors(IN_BACKWARD, change_bytes(units=2, slices=2)),
    ),
    diagnoses=(
        not_padded,
        frees_before_backward,
        no_gradient,
        as_if("slices", zero3_as_if, NEAR),
        dear_call,
        keeps_units,
    ),
    memory=True,
)
