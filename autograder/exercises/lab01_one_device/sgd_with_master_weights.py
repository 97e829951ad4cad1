"""SGD on 16-bit weights with fp32 masters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.exercise import Attempt, Case, Curves, OnRanks, Plain, equal
from autograder.exercise.signs import MistakeText, on_each_rank
from shardlab.trace.tensors import tensors_in

# One unit in the last place of bf16 is 2^-8 of a number or less.  fp32 sums in another order may
# round to the adjacent number; every mistake is off by more.
TOLERANCE = 2.0**-8


def masters_case(name: str, dtype: str, update: float, steps: int, **changes: Any) -> Case:
    """update: how far one step moves a weight of about 1, without momentum."""
    params = {"dtype": dtype, "update": update, "steps": steps, "lr": 0.125}
    return Case(name, 1, params | {"momentum": 0.0, "shapes": ((32,),)} | changes)


def draw_weights(case: Case, rng: np.random.Generator) -> Plain:
    """Weights from 1 to 2, and for each tensor gradients [steps, …] that keep their sign."""
    dtype, steps = getattr(torch, case.params["dtype"]), case.params["steps"]
    weights, gradients = [], []
    for shape in case.params["shapes"]:
        weights.append(torch.from_numpy(rng.uniform(1.2, 1.9, shape)).to(dtype))
        sign = np.where(rng.random(shape) < 0.5, -1.0, 1.0)
        # No noise with momentum: it would move a 16-bit velocity past the point where it stops.
        spread = 0.0 if case.params["momentum"] else 0.2
        noise = rng.uniform(1 - spread, 1 + spread, (steps, *shape))
        size = case.params["update"] / case.params["lr"]
        gradients.append(torch.from_numpy(size * sign * noise).to(dtype))
    return {"weights": weights, "gradients": gradients}


def drive(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    parameters = [nn.Parameter(weight.clone()) for weight in given["weights"]]
    state: dict[Any, Any] = {}
    path = []  # of the first weight
    for gradients in zip(*given["gradients"], strict=True):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            # torch wants equal dtypes: a weight left in fp32 gets an fp32 gradient
            parameter.grad = gradient.to(parameter.dtype, copy=True)
        subject(parameters, state, case.params["lr"], case.params["momentum"])
        path.append(parameters[0].detach().flatten()[0].item())
    return {
        "weights": [parameter.detach() for parameter in parameters],
        "state": [tensor.detach() for tensor in tensors_in(state)],
        "path": path,
    }


def path_of_a_weight(attempt: Attempt) -> Curves:
    end = attempt.expected[0]["weights"][0].flatten()[0].item()
    return Curves("The first weight", {"yours": attempt.outputs[0]["path"]}, level=end)


@on_each_rank
def never_moves(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    """Small updates are lost in three ways; the tensors in ``state`` show which."""
    if not equal(attempt.inputs[rank]["weights"], output["weights"], 0.0):
        return None
    right = attempt.expected[rank]["weights"][0].float()
    wide = [tensor for tensor in output["state"] if tensor.dtype == torch.float32]
    if any(equal(right, tensor, TOLERANCE) for tensor in wide):
        mistake = "never writes back: copy the master into the 16-bit weight after each step"
    elif wide:
        mistake = (
            "copies the master from the rounded weight in each step: copy it once, before the "
            "first, and keep it in state"
        )
    else:
        mistake = (
            "updates the 16-bit weights themselves: an update smaller than half of their last bit "
            "is rounded away, so keep an fp32 master in state"
        )
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in output["state"]}
    return mistake, f"in the state: {', '.join(sorted(dtypes)) or 'nothing'}"


EXERCISE = OnRanks(
    points=4,
    cases=(
        masters_case("bf16, 200 tiny updates", "bfloat16", 1e-3, 200),
        masters_case("fp16, 400 tiny updates", "float16", 1.2e-4, 400),
        masters_case("bf16, momentum", "bfloat16", 2e-5, 300, momentum=0.99),
    ),
    inputs=draw_weights,
    drive=drive,
    tolerance=TOLERANCE,
    allows=frozenset(),
    signs=(never_moves,),
    curves=path_of_a_weight,
)
