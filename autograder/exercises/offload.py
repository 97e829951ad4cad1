"""Lab 06, OffloadedAdam: an optimizer that lives on the host, driven with given gradients.

The driver puts 16-bit weights on the device, hands in one gradient for each step, and counts what
crosses between the pools.  Gradients are given, not computed, so that Adam's results are exact to
fp32's rounding; each element's gradient keeps its sign over the steps, so that weights move far
enough to tell a lost update from a rounded one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.exercise import Attempt, Budget, Case, Exercise, Finding, Plain
from autograder.exercise.compare import equal
from shardlab.pools import DEVICE, HOST, Pools
from shardlab.run import Run

HALF = torch.bfloat16
# Adam keeps its count of steps in 0-dim fp32 tensors, and those may be anywhere.
SCALARS_BYTES = 256


def adam_case(
    name: str, shapes: list[list[int]], steps: int, hidden: bool = False, **rates: Any
) -> Case:
    rates = {"lr": 0.01, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01} | rates
    return Case(name, 1, {"shapes": shapes, "steps": steps, "rates": rates}, hidden)


def elements(case: Case) -> int:
    """Ψ."""
    return sum(int(np.prod(shape)) for shape in case.params["shapes"])


def draw_training(case: Case, rng: np.random.Generator) -> list[Plain]:
    """Weights of 0.25 to 1 and gradients of 0.5 to 1.5, of either sign: none near zero."""

    def tensors(low: float, high: float) -> list[torch.Tensor]:
        shapes = case.params["shapes"]
        return [torch.from_numpy(rng.uniform(low, high, shape)).to(HALF) for shape in shapes]

    def signs() -> list[torch.Tensor]:
        return [
            torch.from_numpy(rng.choice([-1.0, 1.0], shape)).to(HALF)
            for shape in case.params["shapes"]
        ]

    weights = [value * sign for value, sign in zip(tensors(0.25, 1), signs(), strict=True)]
    downhill = signs()
    gradients = [
        [value * sign for value, sign in zip(tensors(0.5, 1.5), downhill, strict=True)]
        for _ in range(case.params["steps"])
    ]
    return [{"weights": weights, "gradients": gradients}]


def rates_of(case: Case) -> dict[str, Any]:
    return case.params["rates"] | {"betas": tuple(case.params["rates"]["betas"])}


def drive_adam(subject: Any, given: Plain, case: Case) -> Plain:
    """Steps the student's optimizer, and tells where things were and what moved."""
    parameters = [nn.Parameter(weight.clone()) for weight in given["weights"]]
    # made out of sight: a gradient is on the device from its first use until the next takes over
    waiting = [[gradient.clone() for gradient in step] for step in given["gradients"]]
    pools, moved = Pools("cpu"), []
    with pools:
        optimizer = subject(parameters, pools, **rates_of(case))
        while waiting:
            for parameter, gradient in zip(parameters, waiting.pop(0), strict=True):
                parameter.grad = gradient
            before = len(pools.moves)
            optimizer.step()
            moved.append(by_way(pools.moves[before:]))
        masters = [master.detach() for master in optimizer.masters]
    on_host = pools.live_bytes(HOST).get("float32", 0)
    return {
        "parameters": [parameter.detach() for parameter in parameters],
        "parameters are on": [pools.place_of(parameter) for parameter in parameters],
        "masters": masters,
        "masters are on": [pools.place_of(master) for master in masters],
        "moved": moved,
        "12Ψ bytes of fp32 are on the host": on_host >= 12 * elements(case),
        "fp32 on the host": on_host,
        "device peak": pools.peak_bytes(DEVICE),
    }


def by_way(moves: Any) -> dict[str, int]:
    """{"host bfloat16": bytes, "device bfloat16": bytes}"""
    ways: Counter[str] = Counter()
    for move in moves:
        ways[f"{move.to} {move.dtype}"] += move.bytes
    return dict(ways)


def expect_adam(case: Case, inputs: Any) -> list[Plain]:
    """torch's own AdamW on fp32 masters of the same gradients; weights are the masters, rounded."""
    given = inputs[0]
    masters = train(given, case)
    bytes_each_way = 2 * elements(case)
    return [
        {
            "parameters": [master.to(HALF) for master in masters],
            "parameters are on": [DEVICE] * len(masters),
            "masters": masters,
            "masters are on": [HOST] * len(masters),
            "12Ψ bytes of fp32 are on the host": True,
            "moved": [
                {"host bfloat16": bytes_each_way, "device bfloat16": bytes_each_way}
                for _ in given["gradients"]
            ],
        }
    ]


def train(given: Any, case: Case, is_stale: bool = False) -> list[torch.Tensor]:
    """The masters after all steps. ``is_stale``: rounded to 16 bits after each of them."""
    masters = [nn.Parameter(weight.float()) for weight in given["weights"]]
    adam = torch.optim.AdamW(masters, **rates_of(case))
    for gradients in given["gradients"]:
        for master, gradient in zip(masters, gradients, strict=True):
            master.grad = gradient.float()
        adam.step()
        for master in masters if is_stale else []:
            master.data.copy_(master.data.to(HALF).float())
    return [master.detach() for master in masters]


# ---- budgets ------------------------------------------------------------------------------------


def most_moved(run: Run) -> list[int]:
    """Bytes both ways in the step that moved most; 0 where the rank did not come to its end."""
    output = run.outputs[0]
    steps = output["moved"] if isinstance(output, dict) else []
    return [max((sum(way.values()) for way in steps), default=0)]


def wide_on_device(run: Run) -> list[int]:
    """Bytes on the device that are not 16-bit, each dtype at its highest moment."""
    output = run.outputs[0]
    peak = output["device peak"] if isinstance(output, dict) else {}
    return [sum(size for dtype, size in peak.items() if dtype not in ("bfloat16", "float16"))]


MOVED = Budget(
    "moves 2Ψ bytes down and 2Ψ up in a step",
    limit=lambda case: [4 * elements(case)],
    used=most_moved,
    heading="moved in a step",
)
NO_FP32_ON_DEVICE = Budget(
    "no fp32 on the device",
    limit=lambda case: [SCALARS_BYTES],
    used=wide_on_device,
    heading="fp32 on the device",
)


# ---- mistakes by their names --------------------------------------------------------------------


def output_of(attempt: Attempt) -> dict[str, Any] | None:
    output = attempt.outputs[0]
    return output if attempt.error is None and isinstance(output, dict) else None


def most(attempt: Attempt, way: str) -> int:
    output = output_of(attempt)
    return max((step.get(way, 0) for step in output["moved"]), default=0) if output else 0


def finding(mistake: str, evidence: str = "") -> Finding:
    return Finding("your optimizer", mistake, evidence, anyone="your optimizer")


def mixes_pools(attempt: Attempt) -> Finding | None:
    error = attempt.error
    if error is None or getattr(error, "kind", "") != "PoolError":
        return None
    said = error.headline.partition("PoolError: ")[2]
    return finding(
        "uses tensors of the device and of the host in one operation, or moves one that is there "
        "already: a gradient comes by pools.to_host, weights go back by pools.to_device",
        said,
    )


def states_visit_the_device(attempt: Attempt) -> Finding | None:
    psi, up = elements(attempt.case), most(attempt, "device float32")
    if up < 8 * psi:
        return None
    return finding(
        "moves its states to the device in each step: update on the host, where they are",
        f"{up:,} bytes of fp32 go up, {up / psi:.0f}Ψ",
    )


def fp32_parameters_go_up(attempt: Attempt) -> Finding | None:
    psi, up = elements(attempt.case), most(attempt, "device float32")
    if not up:
        return None
    return finding(
        "moves fp32 parameters up, 4Ψ bytes: round them to 16 bits on the host, 2Ψ go up",
        f"{up:,} bytes of fp32 go up, {up / psi:.0f}Ψ",
    )


def fp32_gradients_on_device(attempt: Attempt) -> Finding | None:
    psi, down = elements(attempt.case), most(attempt, "host float32")
    if not down:
        return None
    return finding(
        "makes its gradients fp32 on the device: move 16 bits down and widen them on the host",
        f"{down:,} bytes of fp32 go down, {down / psi:.0f}Ψ",
    )


def other_fp32_on_device(attempt: Attempt) -> Finding | None:
    output = output_of(attempt)
    wide = output["device peak"].get("float32", 0) if output else 0
    if wide <= SCALARS_BYTES:
        return None
    return finding(
        "has fp32 tensors on the device: masters and states are made on the host, from what came "
        "down in 16 bits",
        f"{wide:,} bytes at the most",
    )


def stale_weights(attempt: Attempt) -> Finding | None:
    output = output_of(attempt)
    if not output:
        return None
    if equal(attempt.expected[0]["masters"], output["masters"]):
        return None
    stale = train(attempt.inputs[0], attempt.case, is_stale=True)
    if share_of_equals(stale, output["parameters"]) < 0.98:
        return None
    return finding(
        "updates the stale 16-bit weights: what rounding cuts off in one step is lost for the "
        "next; keep fp32 masters and update those"
    )


def share_of_equals(wanted: list[torch.Tensor], got: list[torch.Tensor]) -> float:
    """Of all elements, once the wanted ones are rounded to 16 bits: bit for bit."""
    rounded = torch.cat([weight.to(HALF).flatten() for weight in wanted])
    return float((rounded == torch.cat([weight.flatten() for weight in got])).float().mean())


def never_brings_back(attempt: Attempt) -> Finding | None:
    output = output_of(attempt)
    if not output or not equal(attempt.inputs[0]["weights"], output["parameters"]):
        return None
    return finding("leaves the device's weights as they were: bring the new ones up in each step")


def parameters_moved_out(attempt: Attempt) -> Finding | None:
    output = output_of(attempt)
    if not output or HOST not in output["parameters are on"]:
        return None
    return finding(
        "puts host tensors into the model: copy what pools.to_device returns into the parameter"
    )


def moves_more(attempt: Attempt) -> Finding | None:
    bytes_each_way = 2 * elements(attempt.case)
    for way, what in (("host", "down: only gradients go down"), ("device", "up: only weights go")):
        moved = most(attempt, f"{way} bfloat16")
        if moved > bytes_each_way:
            times = f"{moved:,} bytes in a step, 2Ψ are {bytes_each_way:,}"
            return finding(f"moves more than 2Ψ bytes {what}", times)
    return None


def states_elsewhere(attempt: Attempt) -> Finding | None:
    output = output_of(attempt)
    if not output or output["12Ψ bytes of fp32 are on the host"]:
        return None
    return finding(
        "holds less on the host than masters and both states take, 12Ψ bytes of fp32",
        f"{output['fp32 on the host']:,} bytes, at least {12 * elements(attempt.case):,}",
    )


def wrong_update(attempt: Attempt) -> Finding | None:
    """Right bytes, wrong masters: the mistake is in Adam's formula."""
    output = output_of(attempt)
    if not output or equal(attempt.expected[0]["masters"], output["masters"]):
        return None
    given, case = attempt.inputs[0], attempt.case
    weights = [weight.float() for weight in given["weights"]]
    if equal(weights, output["masters"]):
        return finding("leaves its masters as they were")
    without_decay = Case(
        case.name, 1, {**case.params, "rates": {**case.params["rates"], "weight_decay": 0.0}}
    )
    if equal(train(given, without_decay), output["masters"]):
        return finding(
            "leaves out weight decay: AdamW multiplies the masters by 1 - lr·weight_decay"
        )
    return None


OFFLOADED_ADAM = Exercise(
    name="offload.OffloadedAdam",
    points=6,
    cases=(
        adam_case("one tensor, 3 steps", [[64, 64]], 3),
        adam_case("four tensors, 8 steps", [[96, 32], [32], [32, 96], [96]], 8),
        adam_case(
            "a matrix and a vector, quick rates",
            [[48, 40], [40]],
            6,
            hidden=True,
            lr=0.02,
            betas=[0.8, 0.95],
            weight_decay=0.1,
        ),
        adam_case(
            "three odd shapes, 25 steps",
            [[32, 33], [7], [5, 3, 2]],
            25,
            hidden=True,
            lr=0.003,
            weight_decay=0.0,
        ),
    ),
    draw=draw_training,
    drive=drive_adam,
    expect=expect_adam,
    budgets=(MOVED, NO_FP32_ON_DEVICE),
    allows=frozenset(),
    diagnoses=(
        mixes_pools,
        states_visit_the_device,
        stale_weights,
        fp32_parameters_go_up,
        fp32_gradients_on_device,
        other_fp32_on_device,
        parameters_moved_out,
        never_brings_back,
        wrong_update,
        moves_more,
        states_elsewhere,
    ),
)
