"""What decides in more than one exercise: a step without checkpointing, and other gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercises.lab09_activation_checkpointing.networks import (
    network_of,
    plainly,
    results,
)
from autograder.exercises.lab09_activation_checkpointing.shared import step


def plain(case: Case, inputs: Any) -> list[dict[str, Plain]]:
    """By rank."""
    return [results(step(network_of(plainly, given, case), given, case)) for given in inputs]


def reference(case: Case, inputs: Any) -> list[Plain]:
    runs = [2] * case.params["blocks"]
    if case.params["network"] == "nested":  # in forward, as part of the outer, by itself
        runs[1:] = [3] * (len(runs) - 1)
    return [right | {"runs": runs, "bit for bit": True} for right in plain(case, inputs)]


def other(
    key: str, change: Callable[[list[Tensor]], list[Tensor]]
) -> Callable[[Case, Any], list[Plain]]:
    return lambda case, inputs: [{key: change(right[key])} for right in plain(case, inputs)]


def zeros(gradients: list[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(gradient) for gradient in gradients]


ARGUMENTS, WEIGHTS = "gradients of arguments", "gradients of weights"
MISTAKES = {
    "returns no gradient for an argument that has one": (
        other(ARGUMENTS, zeros),
        other(ARGUMENTS, lambda right: [*zeros(right[:1]), *right[1:]]),
        other(ARGUMENTS, lambda right: [*right[:1], *zeros(right[1:])]),
    ),
    "leaves the function's own weights without a gradient: torch.autograd.grad gives those of the "
    "inputs alone, torch.autograd.backward fills every .grad": other(WEIGHTS, zeros),
    "adds a gradient twice: backward on inputs that were not detached adds to their .grad, and so "
    "does autograd with what is returned": (
        other(ARGUMENTS, lambda right: [2 * gradient for gradient in right])
    ),
}
