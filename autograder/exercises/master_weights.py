"""SGD on 16-bit weights with fp32 masters: the rule, and where each mistake leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autograder.exercise import Attempt, Case, Curves, Finding, Plain
from autograder.exercise.compare import equal
from autograder.exercise.kept_back import kept_back
from shardlab.trace.tensors import tensors_in

# One unit in the last place of bf16 is 2^-8 of a number or less.  fp32 sums in another order may
# round to the neighbour; every mistake below is off by ten times as much.
TOLERANCE = 2.0**-8

Weights = list[Tensor]


def masters_case(
    name: str,
    dtype: str,
    update: float,
    steps: int,
    momentum: float = 0.0,
    shapes: tuple[tuple[int, ...], ...] = ((32,),),
    hidden: bool = False,
) -> Case:
    """update: how far one step moves a weight of about 1, without momentum."""
    params = {
        "dtype": dtype,
        "update": update,
        "steps": steps,
        "momentum": momentum,
        "shapes": shapes,
        "lr": 0.125,
    }
    return Case(name, 1, params, hidden)


def draw_weights(case: Case, rng: np.random.Generator) -> list[Plain]:
    """Weights from 1 to 2, and for each tensor gradients [steps, …] that keep their sign."""
    dtype, steps = getattr(torch, case.params["dtype"]), case.params["steps"]
    weights, gradients = [], []
    for shape in case.params["shapes"]:
        weights.append(torch.from_numpy(rng.uniform(1.2, 1.9, shape)).to(dtype))
        sign = np.where(rng.random(shape) < 0.5, -1.0, 1.0)
        # Noise would carry a 16-bit velocity past the place where it stops: none with momentum.
        spread = 0.0 if case.params["momentum"] else 0.2
        noise = rng.uniform(1 - spread, 1 + spread, (steps, *shape))
        size = case.params["update"] / case.params["lr"]
        gradients.append(torch.from_numpy(size * sign * noise).to(dtype))
    return [{"weights": weights, "gradients": gradients}]


def drive_masters(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    parameters = [nn.Parameter(weight.clone()) for weight in given["weights"]]
    state: dict[Any, Any] = {}
    path = []  # of the first weight
    for gradients in zip(*given["gradients"], strict=True):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            # a weight that was left in fp32 gets an fp32 gradient: torch wants them alike
            parameter.grad = gradient.to(parameter.dtype, copy=True)
        subject(parameters, state, case.params["lr"], case.params["momentum"])
        path.append(parameters[0].detach().flatten()[0].item())
    return {
        "weights": [parameter.detach() for parameter in parameters],
        "state": [tensor.detach() for tensor in tensors_in(state)],
        "path": path,
    }


def expect_masters(case: Case, inputs: Any) -> list[Plain]:
    return [{"weights": follow(case, inputs[0])}]


@kept_back(lambda case, inputs: [(case, inputs[0], how) for how in MISTAKES])
def follow(case: Case, given: Plain, mistake: str = "") -> Weights:
    """The weights at the end, in 16 bit."""
    lr, momentum = case.params["lr"], case.params["momentum"]
    weights = [weight.clone() for weight in given["weights"]]
    for weight, gradients in zip(weights, given["gradients"], strict=True):
        master = weight.float()
        narrow = mistake == "16-bit momentum"
        velocity = torch.zeros_like(weight if narrow else master)
        for gradient in gradients:
            if mistake == "16 bit throughout":
                master = weight.float()
            velocity = momentum * velocity + (gradient if narrow else gradient.float())
            if mistake == "no momentum":
                velocity = gradient.float()
            master -= lr * velocity.float()
            if mistake != "never writes back":
                weight.copy_(master)
    return weights


def path_of_a_weight(attempt: Attempt) -> Curves:
    end = attempt.expected[0]["weights"][0].flatten()[0].item()
    return Curves("The first weight", {"yours": attempt.outputs[0]["path"]}, level=end)


# ---- mistakes by their names ---------------------------------------------------------------------

MISTAKES: tuple[str, ...] = (
    "16 bit throughout",
    "never writes back",
    "16-bit momentum",
    "no momentum",
)


def wide_weights(attempt: Attempt) -> Finding | None:
    dtype = attempt.inputs[0]["weights"][0].dtype
    for weight in [] if attempt.error else attempt.outputs[0]["weights"]:
        if weight.dtype == torch.float32 != dtype:
            return Finding(
                "sgd_with_master_weights",
                "leaves fp32 weights: the model computes in 16 bit, so round the master back into "
                "the parameter with copy_",
                anyone="sgd_with_master_weights",
            )
    return None


def wrong_updates(attempt: Attempt) -> Finding | None:
    if attempt.error:
        return None
    given, output = attempt.inputs[0], attempt.outputs[0]
    if equal(attempt.expected[0]["weights"], output["weights"], TOLERANCE):
        return None
    said = (
        stands_still(attempt.expected[0]["weights"], output["state"]),
        NEVER_WRITES,
        "keeps momentum in 16 bit, where it stops growing: its state is fp32, like the master",
        "gets no speed from momentum: velocity = momentum * velocity + the whole gradient",
    )
    ends = [follow(attempt.case, given, how) for how in MISTAKES]
    # Two that hardly move the weights end within the tolerance of each other: the nearest counts.
    off = [furthest(end, output["weights"]) for end in ends]
    nearest = off.index(min(off))
    if not equal(ends[nearest], output["weights"], TOLERANCE):
        return None
    who = "sgd_with_master_weights"
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in output["state"]}
    kept = ", ".join(sorted(dtypes)) or "nothing"
    return Finding(who, said[nearest], f"in the state: {kept}", anyone=who)


def furthest(some: Weights, others: Weights) -> float:
    pairs = zip(some, others, strict=True)
    return max((one.float() - other.float()).abs().max().item() for one, other in pairs)


def stands_still(expected: Weights, state: Weights) -> str:
    """Small updates are lost in three ways; what was kept in the state tells them apart."""
    wide = [tensor for tensor in state if tensor.dtype == torch.float32]
    if any(equal(expected[0].float(), tensor, TOLERANCE) for tensor in wide):
        return NEVER_WRITES
    if wide:
        return (
            "takes the master from the rounded weight in each step: it is copied once, before "
            "the first, and kept in state"
        )
    return (
        "updates the 16-bit weights themselves: an update smaller than half of their last bit "
        "is rounded away, so keep an fp32 master in state"
    )


NEVER_WRITES = "never writes back: copy the master into the 16-bit weight after each step"
