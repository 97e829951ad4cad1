"""Stage 2: a backward pass that reduces and frees gradients as soon as they are complete."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

from torch import Tensor

from autograder.exercise import NAMED_MISTAKES, Attempt, Case, OnRanks, Plain
from autograder.exercise.signs import MistakeText, is_over, on_each_rank
from autograder.exercises.lab04_zero import shared
from autograder.exercises.lab04_zero.shared import (
    AT_END,
    group_layers,
    loss_of,
    mlp,
    with_reference_bounds,
)
from autograder.guest.moments import START, mark, mark_in_backward

BACKWARD = "at the last layer of backward"
LIVE_GRADIENTS, IN_EXCHANGE = "live gradients", "in exchange"


def buckets_of(tensors: Sequence[Tensor], case: Case) -> list[list[Tensor]]:
    layers = list(zip(tensors[::2], tensors[1::2], strict=True))
    return [list(chain.from_iterable(bucket)) for bucket in group_layers(layers, case)]


def drive(subject: Any, given: Any, case: Case) -> Plain:
    model = mlp(given["layers"])
    parameters = list(model.parameters())
    mark_in_backward(model[0], BACKWARD)
    loss = loss_of(model, given["batches"][0])
    mark(START)
    returned = with_reference_bounds(subject, case)(loss, buckets_of(parameters, case))
    mark(AT_END)
    slices = list(returned) if isinstance(returned, list | tuple) else returned
    left = any(parameter.grad is not None for parameter in parameters)
    return {"slices": slices, "gradients left": left}


@on_each_rank
def no_slices(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    slices = output["slices"]
    if not isinstance(slices, list) or len(slices) != len(shared.unit_bytes(attempt.case)):
        return "should return a list with one slice per bucket, in the buckets' order"
    if any(not isinstance(part, Tensor) for part in slices):
        return "has a bucket that was never reduced"
    return None


@on_each_rank
def holds_too_much(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    """Too many live gradients during backward, or all of them still live at the end."""
    over = is_over(attempt, LIVE_GRADIENTS) + is_over(attempt, IN_EXCHANGE)
    if attempt.run is None or rank not in over:
        return None
    at_end = shared.live_at_end(attempt.run, "gradients", "buckets", "other")[rank]
    if at_end >= 0.98 * sum(shared.unit_bytes(attempt.case)):
        return (
            "keeps a full copy of the gradients: a slice is a view, and a view keeps its whole "
            "tensor alive"
        )
    return (
        "holds more gradients at a time than its slices and one bucket: reduce and free each "
        "bucket while backward still runs"
    )


EXERCISE = OnRanks(
    points=5,
    cases=(
        Case("4 ranks, 3 small layers", 4, {"widths": [6, 8, 3, 4]}),
        Case(
            "3 ranks, 2 layers in a bucket", 3, {"widths": [5, 6, 5, 4, 3], "layers_per_bucket": 2}
        ),
        Case("4 ranks, 8 layers of 256 KiB", 4, {"widths": [256] * 9}, weight=2),
    ),
    inputs=partial(shared.draw_inputs, batches=1, scale=4),
    drive=drive,
    tolerance=shared.NEAR,
    budgets=(
        shared.traffic(shared.unit_bytes),
        shared.live(
            "holds ≤ 1.02 × (Ψ/N + one bucket) of gradients",
            LIVE_GRADIENTS,
            lambda run: run.memory.peak_of("gradients").tolist(),
            partial(shared.held_bytes, units=1),
        ),
        # What a bucket's reduce_scatter sends and receives, and those of earlier buckets.
        shared.live(
            "exchanges one bucket at a time",
            IN_EXCHANGE,
            lambda run: run.memory.peak_of("buckets").tolist(),
            lambda case: 2 * (1 + shared.GLOO_THREADS) * max(shared.unit_bytes(case)),
        ),
        # The bucket that backward fills, and the tensors of another bucket's exchange.
        shared.process_memory(BACKWARD, partial(shared.held_bytes, units=4)),
        shared.process_memory(AT_END, partial(shared.held_bytes, units=4)),
    ),
    signs=(shared.unpadded, no_slices, NAMED_MISTAKES, shared.expensive, holds_too_much),
    memory=True,
)
