"""The reference: all steps in fp32, rounded into the 16-bit weights at the end."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EqualAnswer
from autograder.exercises.lab01_one_device.hidden.shared import NOT_SHARDED
from autograder.exercises.lab01_one_device.sgd_with_master_weights import masters_case

OTHER, LARGER, SMALLER = ((4, 6), (5,)), ((3, 7), (2, 2)), ((3,), (8,))
CASES = (
    masters_case("bf16, two tensors", "bfloat16", -7e-4, 250, shapes=OTHER),
    masters_case(
        "bf16, two tensors, momentum", "bfloat16", 2.5e-5, 280, momentum=0.99, shapes=LARGER
    ),
    masters_case("fp16, other updates", "float16", 1e-4, 500, shapes=SMALLER),
)
BOUNDARIES = NOT_SHARDED | {
    "one rank": "bf16, 200 tiny updates",
    "no momentum": "bf16, 200 tiny updates",
    "one tensor": "bf16, momentum",
    "two tensors": "bf16, two tensors, momentum",
}
EQUAL_ANSWERS = (
    EqualAnswer("p.copy_(master)", "p.data = master.to(p.dtype)", "it stays the same parameter"),
    EqualAnswer("master -= lr * velocity", "master.add_(velocity, alpha=-lr)", "rounding differs"),
)

Velocity = Callable[[Tensor, Tensor, float], Tensor]  # (velocity, gradient, momentum) -> the next


def reference(
    case: Case,
    inputs: Any,
    next_velocity: Velocity = lambda velocity, gradient, momentum: momentum * velocity + gradient,
    narrow_velocity: bool = False,
    wide_weights: bool = False,
) -> Plain:
    weights = []
    for weight, gradients in zip(inputs[0]["weights"], inputs[0]["gradients"], strict=True):
        master = weight.float()
        velocity = torch.zeros_like(weight if narrow_velocity else master)
        for gradient in gradients.to(velocity.dtype):
            velocity = next_velocity(velocity, gradient, case.params["momentum"])
            master -= case.params["lr"] * velocity.float()
        weights.append(master if wide_weights else master.to(weight.dtype))
    return {"weights": weights}


MISTAKES = {
    "leaves fp32 weights: the model computes in 16 bits, so round the master back into the "
    "parameter with copy_": partial(reference, wide_weights=True),
    "keeps momentum in 16 bits, where it stops growing: keep it in fp32, like the master": (
        partial(reference, narrow_velocity=True)
    ),
    "does not build up velocity: velocity = momentum * velocity + the whole gradient": (
        partial(reference, next_velocity=lambda v, gradient, momentum: gradient),
        partial(reference, next_velocity=lambda v, g, momentum: momentum * v + (1 - momentum) * g),
    ),
}
