"""Lab 04: a backward pass that reduces and frees gradients as they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autograder.exercise import Attempt, Budget, Case, Exercise, Finding, Plain
from autograder.exercise.compare import equal
from autograder.exercises.outputs import finished
from autograder.exercises.private import BEGUN, mark, mark_in_backward, no_more_than_tensors
from autograder.exercises.zero import (
    GLOO_THREADS,
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
    sizes_of,
    slices_by_rank,
    traffic,
    with_right_bounds,
)

BACKWARD = "at the last layer of backward"


def draw_backward(case: Case, rng: np.random.Generator) -> list[Plain]:
    layers = draw_layers(case, rng)
    return [
        {"layers": layers, "batch": draw_batch(case, rng, scale=4)} for _ in range(case.world_size)
    ]


def buckets_of(tensors: Sequence[Tensor], case: Case) -> list[list[Tensor]]:
    """As backward reaches them: the last layers first, so many layers in each bucket."""
    layers = [list(tensors[i : i + 2]) for i in range(0, len(tensors), 2)][::-1]
    together = case.params["together"]
    return [
        [tensor for layer in layers[i : i + together] for tensor in layer]
        for i in range(0, len(layers), together)
    ]


def drive_zero2(subject: Any, given: Any, case: Case) -> Plain:
    model = mlp(given["layers"])
    parameters = list(model.parameters())
    mark_in_backward(model[0], BACKWARD)
    loss = loss_of(model, given["batch"])
    mark(BEGUN)
    returned = with_right_bounds(subject)(loss, buckets_of(parameters, case))
    mark(HELD)
    left = sum(parameter.grad is not None for parameter in parameters)
    slices = list(returned) if isinstance(returned, list | tuple) else returned
    return {"slices": slices, "gradients left": left}


def expect_zero2(case: Case, inputs: Any) -> list[Plain]:
    return [{"slices": slices, "gradients left": 0} for slices in backward_slices(case, inputs)]


def backward_slices(case: Case, inputs: Any, rule: Rule = mean) -> list[list[Tensor]]:
    """By rank: its slice of each bucket, put together from all ranks' gradients by ``rule``."""
    by_rank = []
    for given in inputs:
        model = mlp([tensor.clone() for tensor in given["layers"]])
        gradients = torch.autograd.grad(loss_of(model, given["batch"]), list(model.parameters()))
        buckets = buckets_of(gradients, case)
        by_rank.append([flatten(bucket, case.world_size) for bucket in buckets])
    return slices_by_rank(by_rank, rule)


def zero2_as_if(attempt: Attempt, rule: Rule) -> list[Plain]:
    return list(backward_slices(attempt.case, attempt.inputs, rule))


def bucket_sizes(case: Case) -> list[int]:
    layers, together = sizes_of(case)[::-1], case.params["together"]
    return [sum(layers[i : i + together]) for i in range(0, len(layers), together)]


def bucket_bytes(case: Case) -> list[int]:
    return [padded_bytes(size, case.world_size) for size in bucket_sizes(case)]


def gradients_limit(case: Case) -> list[float] | None:
    """Its slices, and the bucket that backward fills at the moment."""
    if case.params["widths"][0] < 100:
        return None
    sizes = bucket_bytes(case)
    return [WITHIN * (sum(sizes) / case.world_size + max(sizes))] * case.world_size


def exchange_limit(case: Case) -> list[float] | None:
    """What a bucket's reduce_scatter takes and what it receives, and those of a few before it."""
    if case.params["widths"][0] < 100:
        return None
    copies = 2 * (1 + GLOO_THREADS)
    return [WITHIN * copies * max(bucket_bytes(case))] * case.world_size


def slices_and_buckets(case: Case) -> float | None:
    """Its slices, a bucket that backward fills, and what the exchange of another takes."""
    sizes = bucket_bytes(case)
    return sum(sizes) / case.world_size + 4 * max(sizes) if sum(sizes) >= LARGE_BYTES else None


def returns_no_slices(attempt: Attempt) -> Finding | None:
    for rank, output in finished(attempt):
        slices, wanted = output["slices"], attempt.expected[rank]["slices"]
        if not isinstance(slices, list) or len(slices) != len(wanted):
            return Finding(
                f"rank {rank}",
                "should return a list with one slice for each bucket, in their order",
            )
        if any(not isinstance(part, Tensor) for part in slices):
            return Finding(f"rank {rank}", "has a bucket that was never reduced")
    return None


def wrong_slice(attempt: Attempt) -> Finding | None:
    for rank, output in finished(attempt):
        for other, wanted in enumerate(attempt.expected):
            if other != rank and equal(wanted["slices"], output["slices"]):
                return Finding(f"rank {rank}", "returns another rank's slices: rank r has the r-th")
    return None


def leaves_gradients(attempt: Attempt) -> Finding | None:
    for rank, output in finished(attempt):
        if output["gradients left"]:
            return Finding(
                f"rank {rank}",
                "leaves whole gradients behind: set .grad to None once its bucket is reduced",
            )
    return None


def holds_too_much(attempt: Attempt) -> Finding | None:
    """Whether all gradients were there at one time, and whether they still are at the end."""
    run = attempt.run
    over = [rank for spent in attempt.spent for rank in spent.ranks_over if spent.heading in LIVE]
    if attempt.error or run is None or not over:
        return None
    rank = over[0]
    everything = 0.98 * sum(bucket_bytes(attempt.case))
    if live_at(run, HELD, "gradients", "buckets", "other")[rank] >= everything:
        return Finding(
            f"rank {rank}",
            "keeps a full copy of the gradients: a slice is a view, and a view keeps all of its "
            "tensor alive",
        )
    return Finding(
        f"rank {rank}",
        "holds more gradients at once than its slices and one bucket: reduce and free each bucket "
        "while backward still runs",
    )


LIVE = ("gradients at once", "in exchange")

ZERO2_BACKWARD = Exercise(
    name="zero.zero2_backward",
    points=5,
    cases=(
        Case("4 ranks, 3 small layers", 4, {"widths": [6, 8, 3, 4], "together": 1}),
        Case("3 ranks, 2 layers in a bucket", 3, {"widths": [5, 6, 5, 4, 3], "together": 2}),
        Case("4 ranks, 8 layers of 256 KiB", 4, {"widths": [256] * 9, "together": 1}, weight=2),
        Case("5 ranks, 3 small layers", 5, {"widths": [4, 7, 9, 2], "together": 1}, hidden=True),
        Case("6 ranks, one small bucket", 6, {"widths": [5, 3], "together": 1}, hidden=True),
        Case(
            "4 ranks, 24 layers of 363",
            4,
            {"widths": [363] * 25, "together": 1},
            hidden=True,
            weight=2,
        ),
    ),
    draw=draw_backward,
    drive=drive_zero2,
    expect=expect_zero2,
    tolerance=NEAR,
    budgets=(
        traffic("sends ≤ 1.02 × ideal bytes per rank", bucket_bytes),
        Budget(
            "holds ≤ 1.02 × (Ψ/N + one bucket) of gradients",
            limit=gradients_limit,
            used=lambda run: run.memory.peak_of("gradients").tolist(),
            heading=LIVE[0],
        ),
        Budget(
            "exchanges one bucket at a time",
            limit=exchange_limit,
            used=lambda run: run.memory.peak_of("buckets").tolist(),
            heading=LIVE[1],
        ),
        no_more_than_tensors(BACKWARD, slices_and_buckets),
        no_more_than_tensors(HELD, slices_and_buckets),
    ),
    diagnoses=(
        not_padded,
        returns_no_slices,
        wrong_slice,
        as_if("slices", zero2_as_if, NEAR),
        leaves_gradients,
        dear_call,
        holds_too_much,
    ),
    memory=True,
)
