"""An optimizer with its states on the host, driven with given gradients.

The drive puts 16-bit weights on the device, sets one gradient per step, and counts what moves
between the pools.  Gradients are given, so Adam's results are exact up to fp32 rounding; each
element's gradient keeps its sign, so a lost update differs from a rounded one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.exercise import (
    NAMED_MISTAKES,
    Attempt,
    Budget,
    Case,
    Limit,
    OnRanks,
    Plain,
    from_outputs,
)
from autograder.exercise.signs import MistakeText, on_each_rank, raises
from shardlab.pools import DEVICE, HOST, Pools

HALF = torch.bfloat16
# Adam keeps its step count in 0-dim fp32 tensors, which may be anywhere.
SCALARS_BYTES = 256


def adam_case(name: str, shapes: list[list[int]], steps: int, **rates: Any) -> Case:
    rates = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01} | rates
    return Case(name, 1, {"shapes": shapes, "steps": steps, "rates": rates})


def elements(case: Case) -> int:
    """Ψ, the number of elements."""
    return sum(int(np.prod(shape)) for shape in case.params["shapes"])


def draw_training(case: Case, rng: np.random.Generator) -> Plain:
    """Weights of 0.25 to 1 and gradients of 0.5 to 1.5, of either sign: none near zero."""

    def tensors(draw: Callable[..., Any], *given: Any) -> list[torch.Tensor]:
        return [torch.from_numpy(draw(*given, shape)).to(HALF) for shape in case.params["shapes"]]

    sizes, signs = tensors(rng.uniform, 0.25, 1), tensors(rng.choice, [-1.0, 1.0])
    gradient_signs, steps = tensors(rng.choice, [-1.0, 1.0]), range(case.params["steps"])
    gradient_sizes = (tensors(rng.uniform, 0.5, 1.5) for _ in steps)
    return {
        "weights": list(map(torch.mul, sizes, signs)),
        "gradients": [list(map(torch.mul, each, gradient_signs)) for each in gradient_sizes],
    }


def drive(subject: Any, given: Plain, case: Case) -> Plain:
    """Steps the student's optimizer, and reports where things were and what moved."""
    parameters = [nn.Parameter(weight.clone()) for weight in given["weights"]]
    # Created outside the pools: a gradient is on the device from its first use until the next step.
    waiting = [[gradient.clone() for gradient in step] for step in given["gradients"]]
    pools, moved = Pools("cpu"), []
    with pools:
        optimizer = subject(parameters, pools, **case.params["rates"])
        while waiting:
            for parameter, gradient in zip(parameters, waiting.pop(0), strict=True):
                parameter.grad = gradient
            before = len(pools.moves)
            optimizer.step()
            moved_bytes: Counter[str] = Counter()
            for move in pools.moves[before:]:
                moved_bytes[f"{move.to} {move.dtype}"] += move.bytes
            moved.append(dict(moved_bytes))
        masters = [master.detach() for master in optimizer.masters]
    on_host = pools.live_bytes(HOST).get("float32", 0)
    peak = pools.peak_bytes(DEVICE)
    return {
        "parameters": [parameter.detach() for parameter in parameters],
        "as fp32": [parameter.detach().float() for parameter in parameters],
        "parameters are on": [pools.place_of(parameter) for parameter in parameters],
        "masters": masters,
        "masters are on": [pools.place_of(master) for master in masters],
        "moved": moved,
        "moved in a step": max(sum(moved_bytes.values()) for moved_bytes in moved),
        "12Ψ bytes of fp32 are on the host": on_host >= 12 * elements(case),
        "fp32 on the host": on_host,
        "fp32 on the device": peak.get("float32", 0),
        "not 16-bit on the device": sum(peak.values())
        - peak.get("bfloat16", 0)
        - peak.get("float16", 0),
    }


mixes_pools = raises(
    "^PoolError",
    "mixes tensors of the device and the host in one operation, or moves a tensor to the "
    "pool it is already in: move gradients with pools.to_host, and weights back with "
    "pools.to_device",
    who="your answer",
    quoted=True,
)

UP, DOWN = "device float32", "host float32"
# {mistake: (what moves, allowed bytes per element in a step)}
MOVES = {
    "moves its states to the device in each step: update on the host, where they are": (UP, 7.99),
    "moves fp32 parameters up, 4Ψ bytes: round them to 16 bits on the host, 2Ψ go up": (UP, 0),
    "converts gradients to fp32 on the device: move 16 bits down, widen on the host": (DOWN, 0),
    "moves more than 2Ψ bytes down: only gradients go down": ("host bfloat16", 2),
    "moves more than 2Ψ bytes up: only weights go up": ("device bfloat16", 2),
}


@on_each_rank
def moves_too_much(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    for mistake, (way, allowed) in MOVES.items():
        most = max(moved.get(way, 0) for moved in output["moved"])
        each = most / elements(attempt.case)
        if each > allowed:
            place, dtype = way.split()
            return mistake, f"{most:,} bytes of {dtype} to the {place} in a step, {each:.3g}Ψ"
    return None


@on_each_rank
def misplaced(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    if output["fp32 on the device"] > SCALARS_BYTES:
        return (
            "has fp32 tensors on the device: create masters and states on the host, from the "
            "16-bit weights that were moved down",
            f"{output['fp32 on the device']:,} bytes at the peak",
        )
    if HOST in output["parameters are on"]:
        return (
            "puts host tensors into the model: copy what pools.to_device returns into the parameter"
        )
    if not output["12Ψ bytes of fp32 are on the host"]:
        return (
            "keeps less than 12Ψ bytes of fp32 on the host: masters, momentum and variance",
            f"{output['fp32 on the host']:,} bytes, at least {12 * elements(attempt.case):,}",
        )
    return None


EXERCISE = OnRanks(
    answer="OffloadedAdam",
    points=6,
    cases=(
        adam_case("one tensor, 3 steps", [[64, 64]], 3),
        adam_case("four tensors, 8 steps", [[96, 32], [32], [32, 96], [96]], 8),
    ),
    inputs=draw_training,
    drive=drive,
    budgets=(
        Budget(
            "moves 2Ψ bytes down and 2Ψ up in a step",
            from_outputs("moved in a step"),
            lambda case: Limit(4 * elements(case)),
            "moved in a step",
        ),
        Budget(
            "no fp32 on the device",
            from_outputs("not 16-bit on the device"),
            lambda case: Limit(SCALARS_BYTES),
            "fp32 on the device",
        ),
    ),
    allows=frozenset(),
    signs=(mixes_pools, NAMED_MISTAKES, moves_too_much, misplaced),
)
