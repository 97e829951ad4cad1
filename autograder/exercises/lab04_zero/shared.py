"""Shared by the exercises on ZeRO: models, inputs, budgets, signs.

Tensors are concatenated into a flat buffer, padded with zeros to a multiple of N, and cut into N
equal slices; rank r has slice r.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor, nn

from autograder.exercise import Budget, Case, Limit, Plain, sent_bytes
from autograder.exercise.process_memory import process_memory_budget
from autograder.exercise.signs import expensive_calls, half_precision, never_waited
from autograder.exercises.common import BUDGET_FROM_BYTES, FLOAT_BYTES, linear_of, normal
from autograder.guest.on_rank import with_functions_replaced
from shardlab.estimate import scatter_or_gather_sent_bytes
from shardlab.run import Run

Bounds = list[tuple[int, int]]
Size = Callable[[Case], float]  # in bytes

LARGE_BYTES = 8_000_000  # of parameters: enough to show in the memory of the process
WITHIN = 1.02
# Ranks may send unequal shares, but none much less than the ideal: see `traffic`.
AT_LEAST = 0.9
# Each gloo thread may keep the tensors of its last exchange alive a little longer than the call
# that waited for it: limits on live bytes leave room for them.
GLOO_THREADS = 2
TOLERANCE = 1e-5  # what the order of additions may change
AT_END = "at the end"  # a moment: the drive is done, everything is still alive


def with_reference_bounds(subject: Any, case: Case) -> Any:
    """The answer, a function or a class, with the student's shard_bounds, another exercise's
    answer, replaced by ours."""
    known = dict(zip(case.params["lengths"], case.params["bounds"], strict=True))

    def shard_bounds(sizes: Sequence[int], world_size: int) -> Bounds:
        length = int(sum(sizes))
        if world_size != case.world_size or length not in known:
            raise ValueError(
                f"shard_bounds of {length:,} elements on {world_size} ranks: this check supports "
                f"only consecutive parameters of its model, on {case.world_size} ranks"
            )
        return list(known[length])

    for function in vars(subject).values() if inspect.isclass(subject) else [subject]:
        with_functions_replaced(function, shard_bounds=shard_bounds)
    return subject


def draw_inputs(case: Case, rng: np.random.Generator, batches: int | None = None) -> list[Plain]:
    """The same layers on all ranks, [weight [out, in], bias [out], …], and different batches.

    A batch: [inputs [B, first width], targets [B, last]].  By default a case has one batch.
    """
    widths = case.params["widths"]
    batches = case.params.get("batches", 1) if batches is None else batches
    layers = [
        normal(rng, *shape, scale=fan_in**-0.5)
        for fan_in, fan_out in pairwise(widths)
        for shape in ((fan_out, fan_in), (fan_out,))
    ]

    def batch() -> list[Tensor]:
        return [normal(rng, samples(case), width) for width in (widths[0], widths[-1])]

    ranks = range(case.world_size)
    return [{"layers": [*layers], "batches": [batch() for _ in range(batches)]} for _ in ranks]


def samples(case: Case) -> int:
    """Of a batch."""
    return int(case.params.get("samples", 2))


def mlp(tensors: Sequence[Tensor]) -> nn.Sequential:
    """Linear layers with tanh in between; the layers' parameters are the tensors themselves."""
    pairs = zip(tensors[::2], tensors[1::2], strict=True)
    return nn.Sequential(*[each for pair in pairs for each in (linear_of(*pair), nn.Tanh())][:-1])


def loss_of(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """The mean over the samples.  Not over the outputs: so gradients are about 1 at any width, and
    half precision is far outside the tolerance."""
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets, reduction="sum") / len(inputs)


def call_in_backward(module: nn.Module, function: Callable[[], None]) -> None:
    """From the next forward pass on: when backward reaches the module."""

    def after_forward(_: nn.Module, given: Any, output: Tensor) -> None:
        output.register_hook(lambda _: function())

    module.register_forward_hook(after_forward)


def sizes_of(case: Case) -> list[int]:
    """Elements of each layer's weight and bias."""
    return [size for a, b in pairwise(case.params["widths"]) for size in (a * b, b)]


def slice_elements(elements: int, case: Case) -> int:
    return -(-elements // case.world_size)


def buckets_of(tensors: Sequence[Any], case: Case) -> list[list[Any]]:
    """The tensors of each unit or bucket: by default of one layer, last layers first, as backward
    reaches them."""
    each_layer = [[first, first + 1] for first in range(0, len(tensors), 2)][::-1]
    return [[tensors[i] for i in bucket] for bucket in case.params.get("buckets", each_layer)]


def unit_bytes(case: Case) -> list[int]:
    """Bytes of each unit or bucket, padded."""
    elements = [slice_elements(sum(sizes), case) for sizes in buckets_of(sizes_of(case), case)]
    return [FLOAT_BYTES * case.world_size * each for each in elements]


def held_bytes(case: Case, units: float, slices: int = 1) -> float:
    """Bytes of ``units`` whole units and ``slices`` times this rank's slices of all units."""
    sizes = unit_bytes(case)
    return units * max(sizes) + slices * sum(sizes) / case.world_size


def traffic(exchanges: Callable[[Case], Sequence[float]], spared: Size = lambda case: 0) -> Budget:
    """``exchanges``: bytes of each tensor that is reduce-scattered or gathered, with padding;
    ``spared``: bytes of those that an answer may leave out.

    All ranks together must send N × the ideal.  So if each sends at most WITHIN × the ideal, none
    sends less than 1 - (N - 1)(WITHIN - 1) of it.
    """

    def limit(case: Case) -> Limit | None:
        sent = partial(scatter_or_gather_sent_bytes, world_size=case.world_size)
        total = sum(exchanges(case))
        if total < BUDGET_FROM_BYTES:
            return None
        return Limit(WITHIN * sent(total), AT_LEAST * sent(total - spared(case)))

    return Budget("sends ≤ 1.02 × ideal bytes per rank", sent_bytes, limit)


def live(label: str, heading: str, used: Callable[[Run], list[int]], most: Size) -> Budget:
    """A budget of live bytes; no limit in small cases, where a few scalars would matter."""

    def limit(case: Case) -> Limit | None:
        is_large = case.params["widths"][0] >= 100
        return Limit(WITHIN * most(case)) if is_large else None

    return Budget(label, used, limit, heading)


def parameter_bytes(case: Case) -> int:
    return FLOAT_BYTES * sum(sizes_of(case))


def process_memory(moment: str, most: Size, of_parameters: Size = parameter_bytes) -> Budget:
    def tensors_bytes(case: Case) -> float | None:
        return most(case) if of_parameters(case) >= LARGE_BYTES else None

    return process_memory_budget(moment, tensors_bytes)


def live_after(run: Run, moment: str, *categories: str) -> list[list[int]]:
    """By rank: live bytes of these categories each time that the moment was marked."""
    return [
        [
            sum(phase.at_end[name] for name in categories)
            for phase in rank.phases
            if phase.name == moment
        ]
        for rank in run.memory
    ]


def most_after(moment: str, *categories: str) -> Callable[[Run], list[int]]:
    """By rank: the most of these categories that was live when the moment was marked."""
    return lambda run: [max(own, default=0) for own in live_after(run, moment, *categories)]


RULES = (never_waited, half_precision)
TWICE = "which gloo runs as an all-reduce, for twice the bytes: use the lab's reduce_scatter"
expensive = expensive_calls(
    {
        "all_reduce": "all-reduces, which sends twice as many bytes as are needed: reduce_scatter "
        "gives a rank its slice of a sum, and all_gather_single all ranks' slices",
        "reduce_scatter_single": f"calls dist.reduce_scatter_single, {TWICE}",
        "reduce_scatter": f"calls dist.reduce_scatter, {TWICE}",
    }
)
