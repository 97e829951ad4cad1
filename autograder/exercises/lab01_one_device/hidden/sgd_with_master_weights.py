"""The reference: all steps in fp32, rounded into the 16-bit weights at the end."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab01_one_device.hidden.shared import NOT_SHARDED
from autograder.exercises.lab01_one_device.sgd_with_master_weights import (
    NO_SIDE_EFFECTS,
    learning_rate,
    masters_case,
)

OTHER, LARGER, SMALLER = ((4, 6), (5,)), ((3, 7), (2, 2)), ((3,), (8,), (3,))
CASES = (
    masters_case("bf16, two tensors", "bfloat16", -1e-3, 250, shapes=OTHER),
    masters_case(
        "bf16, two tensors, momentum",
        "bfloat16",
        4e-5,
        320,
        momentum=0.99,
        shapes=LARGER,
        pauses=15,
    ),
    # The gradients have 11 significant bits, and are the same in each step: bf16's 8 bits show.
    masters_case("fp16, three tensors", "float16", 1 / 400, 500, shapes=SMALLER, to_zero=True),
)
BOUNDARIES = NOT_SHARDED | {
    "one rank": "bf16, tiny updates down to 0",
    "no momentum": "bf16, tiny updates down to 0",
    "one tensor": "bf16, tiny updates down to 0",
    "two tensors": "fp16, 400 tiny updates",
    "two tensors of one shape": "bf16, momentum, two of one shape",
    "lr is 0, or a gradient": "bf16, two tensors, momentum",
    "the learning rate changes": "bf16, momentum, two of one shape",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(", strict=True", "", "the lists are of one length"),
    EquivalentAnswer("strict=True", "strict=False", "the lists are of one length"),
    EquivalentAnswer("p.copy_(master)", "p.data.copy_(master)", "autograd records neither"),
    EquivalentAnswer(
        "master -= lr * velocity", "master.add_(velocity, alpha=-lr)", "rounding differs"
    ),
)

Next = Callable[..., Tensor]  # velocity and gradient of a step, momentum, lr  ->  a new tensor


def build_up(velocity: Tensor, gradient: Tensor, momentum: float, lr: float) -> Tensor:
    return momentum * velocity + gradient


def reference(
    case: Case,
    inputs: Any,
    next_velocity: Next = build_up,
    update: Next = lambda velocity, gradient, momentum, lr: lr * velocity.float(),
    narrow_velocity: bool = False,
    rounds_each_step: bool = False,
    keeps_first: str = "",
    is_late: bool = False,
    starts_with_gradient: bool = False,
) -> Plain:
    weights, momentum = [], case.params["momentum"]
    for weight, gradients in zip(inputs[0]["weights"], inputs[0]["gradients"], strict=True):
        master = weight.float()
        first = master.clone()
        velocity = torch.zeros_like(weight if narrow_velocity else master)
        velocity += gradients[0] if starts_with_gradient else 0
        for step, narrow in enumerate(gradients):
            lr = learning_rate(0 if keeps_first == "lr" else step, case)
            master = first.clone() if keeps_first == "master" else master
            before = velocity
            velocity = next_velocity(velocity, narrow.to(velocity.dtype), momentum, lr)
            master -= update(before if is_late else velocity, narrow, momentum, lr)
            if rounds_each_step:
                master = master.to(weight.dtype).float()
        weights.append(master.to(weight.dtype))
    return {"weights": weights, "views": weights, **NO_SIDE_EFFECTS, "grows": []}


def wrong(**changes: Any) -> Callable[..., Plain]:
    return lambda case, inputs: {"weights": reference(case, inputs, **changes)["weights"]}


def unchanged(case: Case, inputs: Any) -> Plain:
    return {"weights": inputs[0]["weights"]}


def only_vectors(case: Case, inputs: Any) -> Plain:
    pairs = zip(inputs[0]["weights"], reference(case, inputs)["weights"], strict=True)
    return {"weights": [before if before.ndim > 1 else after for before, after in pairs]}


# Two mistakes can agree in a case with momentum, or in one without.  Those that are right in the
# other come first: the others are named where they are wrong in both.  The last update
# alone moves no weight in some cases, and then equals no update.
MISTAKES = {
    "does not build up velocity: velocity = momentum * velocity + the whole gradient": (
        wrong(next_velocity=lambda v, gradient, momentum, lr: gradient),
        wrong(next_velocity=lambda v, g, momentum, lr: momentum * v + (1 - momentum) * g),
    ),
    "rounds its weights to 16 bits in every step, so small updates are lost: make an fp32 master "
    "once, before the first step, keep it in state, and add the updates to it": (
        wrong(rounds_each_step=True),
        wrong(rounds_each_step=True, narrow_velocity=True),
        wrong(
            rounds_each_step=True,
            narrow_velocity=True,
            update=lambda velocity, gradient, momentum, lr: (lr * velocity).float(),
        ),
    ),
    "leaves the master in state as it was: `master = master - …` makes a new tensor, so update it "
    "in place, or store the new one": wrong(keeps_first="master"),
    "never writes back into the parameters, or not into matrices: use copy_ on the parameter "
    "itself (flatten() and reshape() of a matrix copy it)": (unchanged, only_vectors),
    "computes the update in 16 bits: lr times the gradient or the velocity has to be fp32": (
        wrong(update=lambda velocity, g, momentum, lr: (lr * velocity).to(g.dtype).float()),
        wrong(update=lambda velocity, g, momentum, lr: (lr * velocity.to(g.dtype)).float()),
        wrong(update=lambda velocity, gradient, momentum, lr: (lr * gradient).float()),
    ),
    "keeps momentum in 16 bits, where it stops growing: keep it in fp32, like the master": (
        wrong(narrow_velocity=True),
        wrong(narrow_velocity=True, update=lambda v, g, momentum, lr: (lr * v).float()),
    ),
    "keeps the lr of the first step: it may change, so use the one of this call": (
        wrong(keeps_first="lr")
    ),
    "rounds the gradients to bf16: they may be fp16, which has more digits": (
        wrong(next_velocity=lambda v, gradient, momentum, lr: momentum * v + gradient.bfloat16())
    ),
    "updates the master before the velocity: the update is lr * the new velocity": (
        wrong(is_late=True)
    ),
    "is one gradient ahead: velocity starts at 0, and the update is lr * velocity, without "
    "Nesterov's gradient": (  # with a constant gradient both make the same steps
        wrong(starts_with_gradient=True),
        wrong(update=lambda v, gradient, momentum, lr: lr * (momentum * v.float() + gradient)),
    ),
    "multiplies the gradient by lr before it enters the velocity: lr may change, so the update is "
    "lr * velocity": (
        wrong(
            next_velocity=lambda v, gradient, momentum, lr: momentum * v + lr * gradient,
            update=lambda velocity, gradient, momentum, lr: velocity,
        )
    ),
}
