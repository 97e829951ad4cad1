"""A data-parallel step of adapters on a frozen base in 4 bits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autograder.exercise import (
    NAMED_MISTAKES,
    SENT,
    Attempt,
    Budget,
    Case,
    Limit,
    OnRanks,
    Plain,
    sent_bytes,
)
from autograder.exercise.process_memory import process_memory_budget
from autograder.exercise.signs import (
    MistakeText,
    keeps_growing,
    never_waited,
    on_each_rank,
    over_budget,
)
from autograder.guest.growth import STEPS as MORE_STEPS
from autograder.guest.growth import found_in_more_steps
from autograder.guest.moments import START, mark
from shardlab.estimate import ring_sent_bytes
from shardlab.run import Run

BLOCK = 64  # weights that share an absmax
FLOAT_BYTES = 4
STEPS, LR = 2, 0.0005
TOLERANCE = 1e-5
MESSAGE_BYTES = 1000  # gloo's own, for one all-reduce: measured below 600
BETWEEN = "between forward and backward"
LARGE_WIDTH = 256  # budgets apply from here on: below, scalars and gloo's own messages would matter


def adapters_case(
    name: str, world_size: int, widths: list[int], r: int, alpha: float, more_steps: int = 0
) -> Case:
    """A chain of linear layers: widths[0] -> widths[1] -> …; weights must fill whole blocks.

    ``more_steps``: what grows during these is looked for.
    """
    params = {"widths": widths, "r": r, "alpha": alpha, "samples": 4, "more_steps": more_steps}
    return Case(name, world_size, params)


def draw_step(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same layers on all ranks, in the middle of training (B is not 0), and different batches.

    A layer: packed uint8 [out · in / 2], absmax [out · in / 64], A [r, in], B [out, r].
    A batch: [inputs [B, first width], targets [B, last]].
    """
    widths, r, samples = case.params["widths"], case.params["r"], case.params["samples"]

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.from_numpy(scale * rng.standard_normal(shape)).float()

    layers = []
    for fan_in, fan_out in pairwise(widths):
        weights = fan_in * fan_out
        absmax = 1.7 * fan_in**-0.5 * rng.uniform(0.5, 1.5, weights // BLOCK)
        layers.append(
            {
                "packed": torch.from_numpy(rng.integers(256, size=weights // 2, dtype=np.uint8)),
                "absmax": torch.from_numpy(absmax).float(),
                "A": normal(r, fan_in, scale=fan_in**-0.5),
                "B": normal(fan_out, r, scale=0.1),
            }
        )

    def batch() -> list[Tensor]:
        return [normal(samples, widths[0]), normal(samples, widths[-1])]

    ranks = range(case.world_size)
    return [{"layers": layers, "batches": [batch() for _ in range(STEPS)]} for _ in ranks]


def drive(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    layers = given["layers"]
    adapters = []
    for layer in layers:
        for name in ("A", "B"):
            layer[name] = nn.Parameter(layer[name])
            adapters.append(layer[name])
    base = [[layer[name] for layer in layers] for name in ("packed", "absmax")]
    copies = [[each.clone() for each in some] for some in base]
    mark(START)
    steps, losses = [], [0] * STEPS

    def one_step(step: int = 0) -> None:
        inputs, targets = given["batches"][step]

        def loss_of(y: Tensor) -> Tensor:
            mark(BETWEEN)
            losses[step] += 1
            return (y - targets).square().sum() / len(y)

        subject(layers, inputs, loss_of, case.params["alpha"], LR)

    for step in range(STEPS):
        one_step(step)
        steps.append([each.detach().clone() for each in adapters])
    calls_of_loss = [*losses]
    unchanged = all(
        map(torch.equal, (each for some in base for each in some), (c for s in copies for c in s))
    )
    has_gradient = any(each.grad is not None for some in base for each in some)
    roots = {"the answer": subject, "layers": layers}
    return {
        "adapters": steps,
        "base unchanged": unchanged,
        "base has a gradient": has_gradient,
        "calls of loss_of": calls_of_loss,
        "grows": found_in_more_steps(roots, one_step, case.params["more_steps"]),
    }


# ---- budgets ------------------------------------------------------------------------------------


def is_large(case: Case) -> bool:
    return min(case.params["widths"]) >= LARGE_WIDTH


def adapter_bytes(case: Case) -> int:
    """Bytes of the adapters of all layers, and also of their gradients."""
    return FLOAT_BYTES * case.params["r"] * sum(map(sum, pairwise(case.params["widths"])))


def kept_bytes(case: Case) -> int:
    """For each layer, a few tensors as large as its input or output, and the adapters' gradients
    of the previous step.  A dequantized weight would be as large as 64 or more of them."""
    widths = sum(map(sum, pairwise(case.params["widths"])))
    activations = 3 * case.params["samples"] * widths
    return 8192 + FLOAT_BYTES * activations + adapter_bytes(case)


def live_rise(run: Run) -> list[int]:
    """By rank: live bytes between forward and backward, minus those before the first step.

    Raises KeyError if no forward pass ended.
    """
    rises = []
    for rank in run.memory:
        rank.at(BETWEEN)
        ends = [sum(phase.at_end.values()) for phase in rank.phases if phase.name == BETWEEN]
        rises.append(max(ends) - sum(rank.at(START).values()))
    return rises


def wire_limit(case: Case) -> Limit | None:
    if not is_large(case) or case.world_size == 1:
        return None
    ideal = STEPS * ring_sent_bytes(adapter_bytes(case), case.world_size)
    messages = STEPS * 2 * (len(case.params["widths"]) - 1)
    return Limit(1.02 * ideal + MESSAGE_BYTES * messages, 0.9 * ideal)


KEPT = Budget(
    "keeps only activations for backward",
    live_rise,
    lambda case: Limit(kept_bytes(case)) if is_large(case) else None,
    heading="kept for backward",
)
# Measured where dequantized weights would be far larger than the overhead.
LARGE_BYTES = 10_000_000


def process_limit(case: Case) -> float | None:
    weights = sum(a * b for a, b in pairwise(case.params["widths"]))
    return kept_bytes(case) if FLOAT_BYTES * weights >= LARGE_BYTES else None


# ---- signs --------------------------------------------------------------------------------------


@on_each_rank
def trains_the_base(output: Any) -> MistakeText:
    if output["base has a gradient"]:
        return "computes a gradient for the base's absmax: the base is frozen"
    if not output["base unchanged"]:
        return "changes the base: only the adapters are trained"
    return None


@on_each_rank
def calls_loss_of_again(output: Any) -> MistakeText:
    if (most := max(output["calls of loss_of"])) > 1:
        return "calls loss_of more than once in a step: keep its result", f"{most} calls"
    return None


@on_each_rank
def reduces_more(rank: int, case: Case, attempt: Attempt) -> MistakeText:
    """A rule: what more calls send may be few bytes."""
    params = case.params
    limit = (STEPS + params["more_steps"]) * 2 * (len(params["widths"]) - 1)
    if attempt.run and (calls := sum(call.rank == rank for call in attempt.run.calls)) > limit:
        mistake = "calls all_reduce more than once for each A and each B: nothing else is sent"
        return mistake, f"{calls} calls, at most {limit} are needed"
    return None


EXERCISE = OnRanks(
    points=4,
    cases=(
        adapters_case("1 rank, one layer", 1, [24, 40], r=3, alpha=8.0, more_steps=MORE_STEPS),
        adapters_case("2 ranks, 3 layers", 2, [32, 64, 64, 20], r=5, alpha=4.0),
        adapters_case("2 ranks, 4 layers of 256 KiB in fp32", 2, [256] * 5, r=3, alpha=2.0),
    ),
    inputs=draw_step,
    drive=drive,
    tolerance=TOLERANCE,
    budgets=(
        KEPT,
        Budget("sends the adapters' gradients, + 2 % + 1 kB each", sent_bytes, wire_limit),
        process_memory_budget(BETWEEN, process_limit),
    ),
    allows=frozenset({"all_reduce"}),
    rules=(never_waited, reduces_more, keeps_growing),
    signs=(
        trains_the_base,
        calls_loss_of_again,
        NAMED_MISTAKES,
        over_budget(
            KEPT.heading,
            "keeps something as large as a weight between forward and backward: keep only the "
            "packed codes, dequantize them again in backward, and do not form B·A",
        ),
        over_budget(SENT, "sends more than the adapters' gradients"),
    ),
    memory=True,
)
