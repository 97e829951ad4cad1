"""The rule: all steps in fp32, rounded into the 16-bit weights at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EqualAnswer
from autograder.exercises.lab01_one_device.hidden.shared import ALONE
from autograder.exercises.lab01_one_device.sgd_with_master_weights import masters_case

OTHER, LARGER, SMALLER = ((4, 6), (5,)), ((3, 7), (2, 2)), ((3,), (8,))
CASES = (
    masters_case("bf16, two tensors", "bfloat16", -7e-4, 250, shapes=OTHER),
    masters_case("bf16, two tensors, momentum", "bfloat16", 2.5e-5, 280, momentum=0.99, shapes=LARGER),
    masters_case("fp16, other updates", "float16", 1e-4, 500, shapes=SMALLER),
)
BOUNDARIES = ALONE | {
    "one rank": "bf16, 200 tiny updates",
    "no momentum": "bf16, 200 tiny updates",
    "one tensor": "bf16, momentum",
    "two tensors": "bf16, two tensors, momentum",
}
EQUAL_ANSWERS = (
    EqualAnswer("p.copy_(master)", "p.data = master.to(p.dtype)", "it stays the same parameter"),
    EqualAnswer(
        "master -= lr * velocity",
        "master.add_(velocity, alpha=-lr)",
        "fp32 may round differently, far below the tolerance",
    ),
)

Velocity = Callable[[Tensor, Tensor, float], Tensor]  # (velocity, gradient, momentum) -> the next


def stepped_with(next_velocity: Velocity, narrow: bool = False) -> Callable[..., Plain]:
    """``narrow``: velocities are kept in 16 bit."""

    def outputs(case: Case, inputs: Any) -> Plain:
        weights = []
        for weight, gradients in zip(inputs[0]["weights"], inputs[0]["gradients"], strict=True):
            master = weight.float()
            velocity = torch.zeros_like(weight if narrow else master)
            for gradient in gradients.to(velocity.dtype):
                velocity = next_velocity(velocity, gradient, case.params["momentum"])
                master -= case.params["lr"] * velocity.float()
            weights.append(master.to(weight.dtype))
        return {"weights": weights}

    return outputs


def as_torch_does(velocity: Tensor, gradient: Tensor, momentum: float) -> Tensor:
    return momentum * velocity + gradient


reference = stepped_with(as_torch_does)
MISTAKES = {
    "keeps momentum in 16 bit, where it stops growing: its state is fp32, like the master": (
        stepped_with(as_torch_does, narrow=True)
    ),
    "gets no speed from momentum: velocity = momentum * velocity + the whole gradient": (
        stepped_with(lambda velocity, gradient, momentum: gradient),
        stepped_with(
            lambda velocity, gradient, momentum: momentum * velocity + (1 - momentum) * gradient
        ),
    ),
}
