"""Dynamic loss scaling on ranks, with real fp16 gradients that overflow.

Each rank has its own weights, as when gradients are sharded over ranks: an overflow on one rank is
unknown to the others until they communicate.  The gradient of weight i is x_i/n, computed in
fp16, where scale·x_i/n may not fit; afterwards it is cast to fp32, as with torch.autocast.  The
weights are four tensors in two groups, next to a parameter that never has a gradient; overflows are
planted in each of the four in turn, and -inf in the next one as well.  Weights decay, so that a
smaller lr is not the same as smaller gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from autograder.exercise import (
    NAMED_MISTAKES,
    Attempt,
    Case,
    Curves,
    Finding,
    OnRanks,
    Plain,
    equal,
)
from autograder.exercise.budget import Budget, Limit, sent_bytes
from autograder.exercise.signs import (
    MistakeText,
    differs_in,
    keeps_growing,
    never_waited,
    on_each_rank,
    raises,
)
from autograder.guest.growth import Growth
from shardlab.errors import DeadlockError

ELEMENTS = 4096  # a power of two: the mean over them divides without rounding
TENSORS = 4  # that the weights are in
LEARNING_RATE, DECAY = 0.5, 0.25
TOO_LARGE = 60_000.0  # fits fp16 (max 65,504), but overflows with any scale above ELEMENTS
DEFAULT_SCALE = 2.0**16
PLANTED = {"inf": TOO_LARGE, "-inf": -TOO_LARGE, "nan": math.nan}
PLANTED |= {"from 2**16": 5000.0, "from 2**17": 2500.0}  # overflow with such scales or larger ones


SCALE_AND_STEPS = "(scale, optimizer steps)"  # after each step

Plan = Mapping[int, tuple[int | tuple[int, ...], str]]


def scaler_case(name: str, world_size: int, plan: Plan, **changes: float) -> Case:
    """plan: {step: (rank, key of PLANTED)}, a value to plant among that rank's gradients, or those
    of a tuple of ranks; with "none" that rank has no gradients in that step.  ``largest``: x, where
    nothing is planted; with 2**-10, unscaled gradients do not fit fp16."""
    params = {"plan": plan, "steps": 12, "scale": DEFAULT_SCALE, "growth_interval": 3, "largest": 1}
    return Case(name, world_size, params | changes)


def draw_steps(case: Case, rng: np.random.Generator) -> list[Plain]:
    """For each rank its weights [n] fp32, and x [steps, n] fp16: multiples of ``largest``/256."""
    given = []
    for rank in range(case.world_size):
        size = (case.params["steps"], ELEMENTS)
        x = torch.from_numpy(rng.integers(1, 257, size=size)).half() / 256
        x *= case.params["largest"]
        for step, (where, what) in case.params["plan"].items():
            if rank in ranks_of(where) and what in PLANTED:
                for number in (step, step + 1) if what == "-inf" else (step,):
                    tensor = x[step].chunk(TENSORS)[number % TENSORS]
                    tensor[int(rng.integers(len(tensor)))] = PLANTED[what]
        weights = torch.from_numpy(rng.uniform(-1, 1, ELEMENTS)).float()
        given.append({"weights": weights, "x": x})
    return given


def ranks_of(where: int | tuple[int, ...]) -> tuple[int, ...]:
    return where if isinstance(where, tuple) else (where,)


def loss_of(weights: Tensor, x: Tensor) -> Tensor:
    """The mean of weights·x, multiplied in fp16: weights [n] fp32, x [n] fp16  ->  [] fp32"""
    return (weights.half() * x).float().mean()


def rate_and_decay(case: Case) -> tuple[float, float]:
    """Options of SGD: one step moves the weights equally far, however large the gradients are."""
    largest = case.params["largest"]
    return LEARNING_RATE / largest, DECAY * largest


def output_of(steps: list[tuple[Plain, int]], weights: Tensor) -> Plain:
    return {SCALE_AND_STEPS: steps, "weights": weights, "loss unchanged": True}


def drive(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    weights: list[Tensor] = [nn.Parameter(x.clone()) for x in given["weights"].chunk(TENSORS)]
    without_gradient = nn.Parameter(torch.ones(3))
    groups = [{"params": [without_gradient, *weights[:2]]}, {"params": weights[2:]}]
    rate, decay = rate_and_decay(case)
    optimizer = torch.optim.SGD(groups, lr=rate, weight_decay=decay)
    stepped: list[int] = []
    optimizer.register_step_post_hook(lambda *_: stepped.append(1))
    options = {name: case.params[name] for name in ("scale", "growth_interval")}
    if options["scale"] == DEFAULT_SCALE:
        del options["scale"]
    scaler = subject(**options)
    steps: list[tuple[Plain, int]] = []
    unchanged = True
    growth = Growth({"self": scaler})
    for step, x in enumerate(given["x"]):
        optimizer.zero_grad()
        loss = loss_of(torch.cat(weights), x)
        before = loss.detach().clone()
        scaler.scale_loss(loss).backward()
        unchanged &= bool(torch.isclose(loss, before, 0.0, 0.0, equal_nan=True))
        if case.params["plan"].get(step) == (dist.get_rank(), "none"):
            optimizer.zero_grad()
        stepped.clear()
        scaler.step(optimizer)
        steps.append((as_number(scaler.scale), len(stepped)))
        growth.after(step)
    ends = torch.cat([weight.detach() for weight in weights])
    found = {"loss unchanged": unchanged, "grows": growth.found()}
    return output_of(steps, ends) | found


def as_number(value: Any) -> Plain:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def scales_by_step(attempt: Attempt) -> Curves:
    def logs(output: Plain) -> list[float]:
        scales = [scale for scale, _ in output[SCALE_AND_STEPS]]
        return [math.log2(scale) if scale > 0 else math.nan for scale in scales]

    got = {f"rank {rank}": logs(output) for rank, output in enumerate(attempt.outputs)}
    return Curves("log₂ of the scale", got, expected=logs(attempt.expected[0]))


def misses_an_all_reduce(attempt: Attempt) -> Finding | None:
    by_rank = [len(attempt.calls_of(rank)) for rank in range(attempt.case.world_size)]
    if not isinstance(attempt.error, DeadlockError) or max(by_rank) == min(by_rank):
        return None
    mistake = (
        "do not all call all_reduce in every step: a rank that did not overflow cannot know that "
        "another did, and one without gradients takes part as well"
    )
    evidence = f"calls by rank: {by_rank}"
    return Finding("the ranks", mistake, evidence, who_if_hidden="the ranks")


@on_each_rank
def breaks_the_rule(output: Any, expected: Any, case: Case) -> MistakeText:
    """The first difference, with what the rule depends on."""
    wanted = expected[SCALE_AND_STEPS]
    skipped = [step for step, (_, steps) in enumerate(wanted) if steps == 0]
    plan = f"growth_interval={case.params['growth_interval']}, overflows in steps {skipped}"
    for step, (got, right) in enumerate(zip(output[SCALE_AND_STEPS], wanted, strict=True)):
        if not equal(right, got):
            evidence = f"step {step} ends with {SCALE_AND_STEPS} = {got}, not {right}; {plan}"
            return "breaks the rule of scale_spec", evidence
    return None


ONE_FLAG = Budget(
    "sends ≤ 1 KiB per rank and step", sent_bytes, lambda case: Limit(1024 * case.params["steps"])
)
NO_LOSS = "returns no loss with a graph from scale_loss: return loss * scale"
NOT_A_LOSS = r"'(NoneType|float)' object has no attribute 'backward'|does not require grad"
EXERCISE = OnRanks(
    points=6,
    answer="DynamicLossScaler",
    cases=(
        scaler_case(
            "1 rank, overflows twice",
            1,
            {2: (0, "from 2**16"), 3: (0, "from 2**16"), 6: (0, "-inf")},
        ),
        scaler_case(  # skips often enough that what grows with each skipped step is noticed
            "1 rank, nans, scales below 1",
            1,
            dict.fromkeys((1, 2, 4, 6, 7), (0, "nan")),
            scale=2.0,
        ),
        scaler_case(
            "3 ranks, overflows in a row",
            3,
            {2: ((0, 1), "-inf"), 3: (1, "inf"), 7: (1, "from 2**16"), 10: (0, "from 2**16")},
        ),
        scaler_case(
            "4 ranks, a nan; rank 3 once has no gradients",
            4,
            {4: (2, "nan"), 5: (3, "none"), 8: (1, "from 2**17"), 9: ((0, 1, 2), "inf")},
        ),
        scaler_case(
            "2 ranks, nothing overflows",
            2,
            {},
            scale=2.0**23,
            growth_interval=5,
            largest=2.0**-10,
        ),
    ),
    inputs=draw_steps,
    drive=drive,
    budgets=(ONE_FLAG,),
    allows=frozenset({"all_reduce"}),
    rules=(never_waited, keeps_growing),
    signs=(
        raises(NOT_A_LOSS, NO_LOSS),
        misses_an_all_reduce,
        differs_in(
            {"loss unchanged": "changes the loss that scale_loss is given: return a new tensor"}
        ),
        NAMED_MISTAKES,
        breaks_the_rule,
    ),
    curves=scales_by_step,
)
