"""What exercises on ZeRO share: models, budgets, mistakes by their names.

Everything is flat: tensors one after the other, padded with zeros to a multiple of N, in N equal
slices of which rank r has the r-th.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autograder.exercise import SENT, Attempt, Budget, Case, Finding, Plain
from autograder.exercise.compare import equal
from autograder.exercise.kept_back import kept_back
from autograder.exercises.outputs import finished
from autograder.guest.on_rank import standing_in
from shardlab.errors import RankError
from shardlab.estimate import scatter_or_gather_sent_bytes
from shardlab.run import Run

FLOAT_BYTES = 4
ADAM_BYTES = 8  # two states in fp32
# Below this, gloo's own messages would blur a budget of a few percent.
BUDGET_FROM_BYTES = 2**20
LARGE_BYTES = 8_000_000  # of parameters, from which on a process shows what it holds
WITHIN = 1.02
# Each of gloo's threads may hold the tensors of the exchange it did last a moment longer than the
# call that waited for it: a limit on what is live leaves room for them.
GLOO_THREADS = 2
NEAR = 1e-5  # what the order of additions may change
HELD = "at the end"  # a block that marks when a drive is done, with all still alive
NOT_PADDED = "pad: its length must divide by world_size"  # the lab's reduce_scatter says so


# ---- flat tensors -------------------------------------------------------------------------------


def shard_bounds(sizes: Sequence[int], world_size: int) -> list[tuple[int, int]]:
    return slices_of(sum(sizes), world_size)


def lengths_in(case: Case, inputs: Any) -> list[tuple[int, int]]:
    """(elements, world_size): of each tensor, of tensors that follow each other, and padded."""
    n, widths = case.world_size, case.params["widths"]
    sizes = [size for a, b in pairwise(widths) for size in (a * b, b)]
    runs = {sum(sizes[i:j]) for i in range(len(sizes)) for j in range(i + 1, len(sizes) + 1)}
    return [(length, n) for length in sorted(runs | {run + -run % n for run in runs})]


@kept_back(lengths_in)
def slices_of(elements: int, world_size: int) -> list[tuple[int, int]]:
    length = -(-elements // world_size)
    return [(rank * length, (rank + 1) * length) for rank in range(world_size)]


def flatten(tensors: Sequence[Tensor], world_size: int) -> Tensor:
    length = sum(tensor.numel() for tensor in tensors)
    flat = tensors[0].new_zeros(length + -length % world_size)
    torch.cat([tensor.detach().flatten() for tensor in tensors], out=flat[:length])
    return flat


def with_right_bounds(subject: Any) -> Any:
    """The answer, a function or a class, with our shard_bounds in the place of the student's."""
    functions = vars(subject).values() if inspect.isclass(subject) else [subject]
    for function in functions:
        standing_in(function, shard_bounds=shard_bounds)
    return subject


# ---- models and inputs --------------------------------------------------------------------------


def draw_layers(case: Case, rng: np.random.Generator) -> list[Tensor]:
    """[weight [out, in], bias [out], …] of linear layers, in the order of a model's parameters."""
    widths = case.params["widths"]
    tensors = []
    for fan_in, fan_out in pairwise(widths):
        for shape in ((fan_out, fan_in), (fan_out,)):
            tensors.append(torch.from_numpy(rng.standard_normal(shape) / fan_in**0.5).float())
    return tensors


def draw_batch(case: Case, rng: np.random.Generator, scale: float) -> list[Tensor]:
    """[inputs [B, first width], targets [B, last width]]. Large targets make large gradients."""
    widths, samples = case.params["widths"], case.params.get("samples", 2)
    return [
        torch.from_numpy(size * rng.standard_normal((samples, width))).float()
        for size, width in ((1, widths[0]), (scale, widths[-1]))
    ]


def mlp(tensors: Sequence[Tensor]) -> nn.Sequential:
    """Linear layers with tanh between them, that take over the tensors."""
    layers: list[nn.Module] = []
    for weight, bias in zip(tensors[::2], tensors[1::2], strict=True):
        layers += [linear_of(weight, bias), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def linear_of(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    return layer


def loss_of(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def sizes_of(case: Case) -> list[int]:
    """Elements of each layer: its weight and its bias."""
    widths = case.params["widths"]
    return [fan_out * (fan_in + 1) for fan_in, fan_out in pairwise(widths)]


# ---- budgets ------------------------------------------------------------------------------------


def traffic(label: str, exchanges: Callable[[Case], Sequence[float]]) -> Budget:
    """``exchanges``: bytes of each tensor that is reduce-scattered or gathered, padding and all."""

    def limit(case: Case) -> list[float] | None:
        tensors = exchanges(case)
        if sum(tensors) < BUDGET_FROM_BYTES:
            return None
        ideal = sum(scatter_or_gather_sent_bytes(size, case.world_size) for size in tensors)
        return [WITHIN * ideal] * case.world_size

    return Budget(label, limit=limit, used=lambda run: run.traffic.sent_by_rank.tolist())


def padded_bytes(elements: int, world_size: int) -> int:
    return FLOAT_BYTES * world_size * -(-elements // world_size)


def live_at(run: Run, label: str, *categories: str) -> list[int]:
    """By rank: live bytes of some categories when the block ``label`` ended; 0 before it did."""
    found = []
    for rank in run.memory:
        known = any(phase.name == label for phase in rank.phases)
        at_end = rank.at(label) if known else {}
        found.append(sum(at_end.get(category, 0) for category in categories))
    return found


def peak_in(run: Run, label: str) -> list[int]:
    """By rank: the most bytes that were live at one time within a phase."""
    return [
        max(
            (sum(phase.at_peak.values()) for phase in rank.phases if phase.name == label),
            default=0,
        )
        for rank in run.memory
    ]


# ---- mistakes by their names --------------------------------------------------------------------

Rule = Callable[[Tensor], Tensor]  # gradients [N, length] of all ranks -> what is used [length]


def slices_by_rank(flats: Sequence[Sequence[Tensor]], rule: Rule) -> list[list[Tensor]]:
    """flats[rank][i]: a padded flat gradient  ->  by rank, its slice of each, put together."""
    used = [rule(torch.stack(same)) for same in zip(*flats, strict=True)]
    return [[flat.chunk(len(flats))[rank] for flat in used] for rank in range(len(flats))]


def mean(gradients: Tensor) -> Tensor:
    return gradients.mean(dim=0)


def by_owner(gradients: Tensor) -> Tensor:
    """Each slice as its owner's own backward made it: nothing was added up."""
    world_size, length = gradients.shape
    bounds = shard_bounds([length], world_size)
    return torch.cat([gradients[rank, start:stop] for rank, (start, stop) in enumerate(bounds)])


WRONG_RULES: tuple[tuple[Rule, str], ...] = (
    (
        lambda gradients: gradients.sum(dim=0),
        "uses the sum of the gradients, not their mean: divide by world_size",
    ),
    (
        lambda gradients: gradients.mean(dim=0) / len(gradients),
        "averages twice: divide the sum by world_size once",
    ),
    (
        by_owner,
        "uses its own gradients alone: add up those of all ranks with reduce_scatter",
    ),
    (
        lambda gradients: gradients.sum(dim=0) / (len(gradients) - 1),
        "divides by N - 1: the mean over N ranks divides by world_size",
    ),
)


def differs(attempt: Attempt, key: str, tolerance: float | None = None) -> bool:
    return any(
        not equal(attempt.expected[rank][key], output[key], tolerance)
        for rank, output in finished(attempt)
    )


def as_if(
    key: str, outputs_by: Callable[[Attempt, Rule], Sequence[Plain]], tolerance: float | None = None
) -> Callable[[Attempt], Finding | None]:
    """Names the rule by which wrong outputs were computed: ``outputs_by`` gives them by rank."""

    def diagnose(attempt: Attempt) -> Finding | None:
        if attempt.error or not differs(attempt, key, tolerance):
            return None
        for rule, mistake in WRONG_RULES:
            wrong = outputs_by(attempt, rule)
            if all(equal(wrong[rank], out[key], tolerance) for rank, out in finished(attempt)):
                return Finding("every rank", mistake, anyone="every rank")
        return None

    return diagnose


def not_padded(attempt: Attempt) -> Finding | None:
    error = attempt.error
    if isinstance(error, RankError) and NOT_PADDED in error.message:
        return Finding(
            f"rank {error.rank}",
            "does not pad: the slices are equal only where world_size divides the length",
        )
    return None


def dear_call(attempt: Attempt) -> Finding | None:
    """Names a collective that does the right thing for more bytes, where a budget was missed."""
    over = any(spent.ranks_over and spent.heading == SENT for spent in attempt.spent)
    if attempt.run is None or not over:
        return None
    called = {call.op: call.rank for call in attempt.run.calls}
    for op, mistake in {
        "all_reduce": "all-reduces: a rank needs its own slice of the sum, and reduce_scatter "
        "sends half as much",
        "reduce_scatter_single": "calls dist.reduce_scatter_single, which gloo runs as an "
        "all-reduce, for twice the bytes: use the lab's reduce_scatter",
        "reduce_scatter": "calls dist.reduce_scatter, which gloo runs as an all-reduce, for twice "
        "the bytes: use the lab's reduce_scatter",
    }.items():
        if op in called:
            return Finding(f"rank {called[op]}", mistake)
    return None
