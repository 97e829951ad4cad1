"""A data-parallel step of adapters on a frozen base in 4 bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autograder.exercise import (
    NAMED_MISTAKES,
    Attempt,
    Budget,
    Case,
    Limit,
    OnRanks,
    Plain,
    equal,
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
from autograder.exercises.common import FLOAT_BYTES, normal
from autograder.guest.growth import STEPS as MORE_STEPS
from autograder.guest.growth import found_in_more_steps
from autograder.guest.moments import START, mark
from shardlab.estimate import ring_sent_bytes
from shardlab.run import Run

BLOCK = 64  # weights that share an absmax
SAMPLES = 4
STEPS, LR = 2, 0.0005  # and one step more, in which all gradients are 0
TOLERANCE = 1e-5
BETWEEN = "between forward and backward"


def adapters_case(
    name: str, world_size: int, widths: list[int], r: int, alpha: float, more_steps: int = 0
) -> Case:
    """A chain of linear layers: widths[0] -> widths[1] -> …; weights must fill whole blocks.

    ``more_steps``: what grows during these is looked for.
    """
    params = {"widths": widths, "r": r, "alpha": alpha, "more_steps": more_steps}
    return Case(name, world_size, params)


def draw_step(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same layers on all ranks, in the middle of training (B is not 0), and different batches.

    A layer: packed uint8 [out · in / 2], absmax [out · in / 64], A [r, in], B [out, r].
    A batch: [inputs [B, first width], targets [B, last]].
    """
    widths, r = case.params["widths"], case.params["r"]
    layers = []
    for fan_in, fan_out in pairwise(widths):
        weights = fan_in * fan_out
        absmax = 1.7 * fan_in**-0.5 * rng.uniform(0.5, 1.5, weights // BLOCK)
        layers.append(
            {
                "packed": torch.from_numpy(rng.integers(256, size=weights // 2, dtype=np.uint8)),
                "absmax": torch.from_numpy(absmax).float(),
                "A": normal(rng, r, fan_in, scale=fan_in**-0.5),
                "B": normal(rng, fan_out, r, scale=0.1),
            }
        )

    def batch() -> list[Tensor]:
        return [normal(rng, SAMPLES, widths[0]), normal(rng, SAMPLES, widths[-1])]

    ranks = range(case.world_size)
    return [{"layers": layers, "batches": [batch() for _ in range(STEPS)]} for _ in ranks]


def named(step: int, adapters: Sequence[Tensor]) -> dict[str, Tensor]:
    """``adapters``: A and B of each layer."""
    return {
        f"{'AB'[i % 2]} of layers[{i // 2}] after step {step + 1}": each
        for i, each in enumerate(adapters)
    }


def drive(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    layers = given["layers"]
    for layer in layers:
        layer |= {name: nn.Parameter(layer[name]) for name in "AB"}
    adapters = [layer[name] for layer in layers for name in "AB"]
    base = [layer[name] for layer in layers for name in ("packed", "absmax")]
    copies = [each.clone() for each in base]
    mark(START)
    steps: dict[str, Tensor] = {}
    losses = {f"step {step + 1}": 0 for step in range(STEPS)}

    def one_step(step: int = 0, is_solved: bool = False) -> None:
        inputs, targets = given["batches"][step]

        def loss_of(y: Tensor) -> Tensor:
            mark(BETWEEN)
            losses[f"step {step + 1}"] += 1
            return (y - (y.detach() if is_solved else targets)).square().sum() / len(y)

        subject(layers, inputs, loss_of, case.params["alpha"], LR)

    for step in range(STEPS):
        one_step(step)
        steps |= named(step, [each.detach().clone() for each in adapters])
    found = {
        "base unchanged": all(map(torch.equal, base, copies)),
        "base has a gradient": any(each.grad is not None for each in base),
        "calls of loss_of": {**losses},
        "adapters": steps,
    }
    one_step(is_solved=True)
    found["moved without a gradient"] = any(
        not torch.equal(each, steps[name]) for name, each in named(STEPS - 1, adapters).items()
    )
    roots = {"the answer": subject, "layers": layers}
    return found | {"grows": found_in_more_steps(roots, one_step, case.params["more_steps"])}


def weights_and_widths(case: Case) -> tuple[int, int]:
    """Elements of all layers' weights; the sum of their inputs' and outputs' widths."""
    pairs = list(pairwise(case.params["widths"]))
    return sum(a * b for a, b in pairs), sum(a + b for a, b in pairs)


def is_large(case: Case) -> bool:
    """Whether budgets apply: else, scalars and gloo's own messages would matter."""
    return min(case.params["widths"]) >= 256


def adapter_bytes(case: Case) -> int:
    """Bytes of the adapters of all layers, and also of their gradients."""
    return FLOAT_BYTES * case.params["r"] * weights_and_widths(case)[1]


def kept_bytes(case: Case) -> int:
    """For each layer, a few tensors as large as its input or output, the adapters' gradients of the
    previous step, and `drive`'s copies.  A dequantized weight would be as large as 64 or more."""
    activations = 3 * SAMPLES * weights_and_widths(case)[1]
    return 8192 + FLOAT_BYTES * activations + 2 * adapter_bytes(case)


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


def reductions(case: Case) -> int:
    """In one step: of each A and each B."""
    return 2 * (len(case.params["widths"]) - 1)


def wire_limit(case: Case) -> Limit | None:
    if not is_large(case) or case.world_size == 1:
        return None
    steps = STEPS + 1
    ideal = steps * ring_sent_bytes(adapter_bytes(case), case.world_size)
    # gloo's own, for one all-reduce: measured below 600 bytes
    return Limit(1.02 * ideal + 1000 * steps * reductions(case), 0.9 * ideal)


def process_limit(case: Case) -> float | None:
    """Where dequantized weights would be far larger than the overhead."""
    return kept_bytes(case) if FLOAT_BYTES * weights_and_widths(case)[0] >= 10_000_000 else None


KEPT = Budget(
    "keeps only activations for backward",
    live_rise,
    lambda case: Limit(kept_bytes(case)) if is_large(case) else None,
    heading="kept for backward",
)


def moves(output: Any) -> MistakeText:
    if output["moved without a gradient"]:
        return "changes adapters whose gradient is 0: the step has no weight decay and no momentum"
    return None


@on_each_rank
def moves_without_a_gradient(output: Any, expected: Any) -> MistakeText:
    """A rule: in the other steps, a small weight decay is below the tolerance."""
    is_right = equal(expected["adapters"], output["adapters"], TOLERANCE)
    return moves(output) if is_right else None


@on_each_rank
def reduces_more(rank: int, case: Case, attempt: Attempt) -> MistakeText:
    """A rule: what more calls send may be few bytes."""
    limit = (STEPS + 1 + case.params["more_steps"]) * reductions(case)
    if (calls := len(attempt.calls_of(rank))) > limit:
        mistake = "calls all_reduce more than once for each A and each B: nothing else is sent"
        return mistake, f"{calls} calls, at most {limit} are needed"
    return None


EXERCISE = OnRanks(
    points=4,
    cases=(
        adapters_case("1 rank, one layer", 1, [24, 40], r=3, alpha=8.0),
        adapters_case(
            "2 ranks, 3 layers", 2, [32, 64, 64, 20], r=5, alpha=4.0, more_steps=MORE_STEPS
        ),
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
    rules=(never_waited, reduces_more, moves_without_a_gradient, keeps_growing),
    signs=(
        NAMED_MISTAKES,
        over_budget(
            KEPT.heading,
            "keeps more between forward and backward than the packed base, the adapters and a few "
            "activations: dequantize again in backward, do not form B·A, keep no states",
        ),
        on_each_rank(moves),
    ),
    memory=True,
)
