"""Dynamic loss scaling on ranks, with real fp16 gradients that overflow.

Each rank has its own weights, as when gradients are sharded over ranks: an overflow on one rank is
unknown to the others until they communicate.  The gradient of weight i is x_i/n, computed in
fp16, where scale·x_i/n may not fit; afterwards it is cast to fp32, as with torch.autocast.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autograder.exercise import Attempt, Case, Curves, Finding, OnRanks, Plain
from autograder.exercise.budget import Budget, Limit, sent_bytes
from autograder.exercise.signs import expensive_calls
from shardlab.errors import DeadlockError

ELEMENTS = 4096  # a power of two: the mean over them divides without rounding
LEARNING_RATE = 0.5
TOO_LARGE = 60_000.0  # fits fp16 (max 65,504), but overflows with any scale above ELEMENTS


def scaler_case(
    name: str, world_size: int, plan: dict[int, tuple[int, str]], **changes: float
) -> Case:
    """plan: {step: (rank, "inf" or "nan")}, a value to plant among that rank's gradients."""
    params = {"plan": plan, "steps": 12, "scale": 2.0**16, "growth_interval": 3}
    return Case(name, world_size, params | changes)


def draw_steps(case: Case, rng: np.random.Generator) -> list[Plain]:
    """For each rank its weights [n] fp32, and x [steps, n] in fp16: multiples of 1/256 up to 1."""
    given = []
    for rank in range(case.world_size):
        size = (case.params["steps"], ELEMENTS)
        x = torch.from_numpy(rng.integers(1, 257, size=size)).half() / 256
        for step, (where, what) in case.params["plan"].items():
            if where == rank:
                x[step, int(rng.integers(ELEMENTS))] = math.nan if what == "nan" else TOO_LARGE
        weights = torch.from_numpy(rng.uniform(-1, 1, ELEMENTS)).float()
        given.append({"weights": weights, "x": x})
    return given


def loss_of(weights: Tensor, x: Tensor) -> Tensor:
    """The mean of weights·x, multiplied in fp16: weights [n] fp32, x [n] fp16  ->  [] fp32"""
    return (weights.half() * x).float().mean()


def output_of(steps: list[int], scales: list[Plain], weights: Tensor) -> Plain:
    return {"optimizer steps": steps, "scale": scales, "weights": weights}


def drive(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    weights = nn.Parameter(given["weights"].clone())
    without_gradient = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weights, without_gradient], lr=LEARNING_RATE)
    stepped: list[int] = []
    optimizer.register_step_post_hook(lambda *_: stepped.append(1))
    scaler = subject(scale=case.params["scale"], growth_interval=case.params["growth_interval"])
    scales, steps = [], []
    for x in given["x"]:
        optimizer.zero_grad()
        scaler.scale_loss(loss_of(weights, x)).backward()
        stepped.clear()
        scaler.step(optimizer)
        steps.append(len(stepped))
        scales.append(as_number(scaler.scale))
    return output_of(steps, scales, weights.detach())


def as_number(value: Any) -> Plain:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def scales_by_step(attempt: Attempt) -> Curves:
    def logs(output: Plain) -> list[float]:
        return [math.log2(scale) if scale > 0 else math.nan for scale in output["scale"]]

    got = {f"rank {rank}": logs(output) for rank, output in enumerate(attempt.outputs)}
    return Curves("log₂ of the scale", got, expected=logs(attempt.expected[0]))


def reduces_only_on_overflow(attempt: Attempt) -> Finding | None:
    if not isinstance(attempt.error, DeadlockError) or attempt.run is None:
        return None
    calls = [call.rank for call in attempt.run.calls if call.op == "all_reduce"]
    by_rank = [calls.count(rank) for rank in range(attempt.case.world_size)]
    if max(by_rank) == min(by_rank):
        return None
    return Finding(
        "the ranks",
        "do not all call all_reduce: a rank that did not overflow cannot know that another did, so "
        "every rank has to call it in every step",
        f"calls by rank: {by_rank}",
        who_if_hidden="the ranks",
    )


ONE_FLAG = Budget(
    "sends ≤ 1 KiB per rank and step", sent_bytes, lambda case: Limit(1024 * case.params["steps"])
)
GRADIENTS = {"all_reduce": "all-reduces its gradients: one number shows whether a rank overflowed"}
EXERCISE = OnRanks(
    points=6,
    answer="DynamicLossScaler",
    cases=(
        scaler_case("1 rank, overflows twice", 1, {2: (0, "inf"), 6: (0, "inf")}),
        scaler_case("1 rank, a nan", 1, {4: (0, "nan")}),
        scaler_case("3 ranks, rank 1 overflows", 3, {3: (1, "inf"), 5: (1, "inf")}),
        scaler_case("4 ranks, a nan on rank 2", 4, {1: (2, "nan"), 8: (0, "inf")}),
        scaler_case("2 ranks, nothing overflows", 2, {}, scale=2.0**13, growth_interval=5),
    ),
    inputs=draw_steps,
    drive=drive,
    budgets=(ONE_FLAG,),
    allows=frozenset({"all_reduce"}),
    signs=(expensive_calls(GRADIENTS), reduces_only_on_overflow),
    curves=scales_by_step,
)
