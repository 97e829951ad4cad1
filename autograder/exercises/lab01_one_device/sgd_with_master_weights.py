"""SGD on 16-bit weights with fp32 masters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autograder.exercise import NAMED_MISTAKES, Attempt, Case, Curves, OnRanks, Plain, equal
from autograder.exercise.budget import Budget, Limit, from_outputs
from autograder.exercise.signs import MistakeText, differs_in, keeps_growing, on_each_rank
from autograder.guest.growth import Growth
from shardlab.trace.tensors import tensors_in

# Of the first and the second half of the steps: one update of the second moves some weights of the
# case that ends near 0, where the last update alone (to a master that is never kept) shows.
LEARNING_RATES = (0.05, 0.1)
IN_PLACE = "gradients unchanged, in their memory"
NO_SIDE_EFFECTS = {IN_PLACE: True, "requires_grad": True, "autograd is on": True}


def masters_case(name: str, dtype: str, update: float, steps: int, **changes: Any) -> Case:
    """update: how far one late step moves a weight, without momentum; in shares of the weight if
    ``to_zero``, so that the last weights are near 0 and show errors that are small next to 1.  Then
    some weights are so large that an update moves them even where each step is rounded.
    ``pauses``: lr is 0 in as many first steps, and the gradient in as many steps of the middle."""
    params = {"dtype": dtype, "update": update, "steps": steps, "to_zero": False}
    return Case(name, 1, params | {"momentum": 0.0, "shapes": ((32,),)} | changes)


def learning_rate(step: int, case: Case) -> float:
    if step < case.params.get("pauses", 0):
        return 0.0
    return LEARNING_RATES[step >= case.params["steps"] // 2]


def draw_weights(case: Case, rng: np.random.Generator) -> Plain:
    """Weights from 1 to 2, and for each tensor gradients [steps, …] that keep their sign."""
    drawn = [draw_tensor(case, shape, rng) for shape in case.params["shapes"]]
    return {"weights": [weight for weight, _ in drawn], "gradients": [each for _, each in drawn]}


def draw_tensor(case: Case, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    weight, gradients = draw_once(case, shape, rng)
    while (close := is_near_a_tie(case, weight, gradients)).any():
        other, others = draw_once(case, shape, rng)
        weight[close], gradients[:, close] = other[close], others[:, close]
    return weight, gradients


def draw_once(case: Case, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    dtype, steps = getattr(torch, case.params["dtype"]), case.params["steps"]
    weight = rng.uniform(1.2, 1.7 if case.params["to_zero"] else 1.5, shape)
    if case.params["to_zero"]:
        sign, spread = weight, 0.0  # the same gradient in each step, so that rounding adds up
    else:
        # No noise with momentum: it would move a 16-bit velocity past the point where it stops.
        sign = np.where(rng.random(shape) < 0.5, -1.0, 1.0)
        spread = 0.0 if case.params["momentum"] else 0.2
    noise = rng.uniform(1 - spread, 1 + spread, (steps, *shape))
    gradients = case.params["update"] / LEARNING_RATES[1] * sign * noise
    gradients[steps // 2 :][: case.params.get("pauses", 0)] = 0.0
    return torch.from_numpy(weight).to(dtype), torch.from_numpy(gradients).to(dtype)


def is_near_a_tie(case: Case, weight: Tensor, gradients: Tensor) -> Tensor:
    """Where fp32 sums in another order might round the last weight to another 16-bit number."""
    master, velocity = weight.double(), torch.zeros_like(weight, dtype=torch.float64)
    for step, gradient in enumerate(gradients.double()):
        velocity = case.params["momentum"] * velocity + gradient
        master -= learning_rate(step, case) * velocity
    margin = 0.05 * torch.finfo(weight.dtype).eps * master.abs()
    return (master - margin).to(weight.dtype) != (master + margin).to(weight.dtype)


def drive(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    parameters = [nn.Parameter(in_memory(weight)) for weight in given["weights"]]
    views = [parameter.detach() for parameter in parameters]
    state: dict[Any, Any] = {}
    take_a_step_elsewhere(subject, parameters)
    path: list[float] = []
    state_bytes: list[int] = []
    growth = Growth({"state": state})
    right = dict(NO_SIDE_EFFECTS)
    for step, gradients in enumerate(zip(*given["gradients"], strict=True)):
        copies: list[Tensor] = []
        for parameter, gradient in zip(parameters, gradients, strict=True):
            # torch wants equal dtypes: a weight left in fp32 gets an fp32 gradient
            copies.append(gradient.to(parameter.dtype, copy=True))
            parameter.grad = copies[-1]
        places = [(copy.data_ptr(), copy.dtype) for copy in copies]
        momentum = (case.params["momentum"],) if case.params["momentum"] else ()
        subject(parameters, state, learning_rate(step, case), *momentum)
        right[IN_PLACE] &= places == [(g.data_ptr(), g.dtype) for g in copies] and all(
            parameter.grad is copy and torch.equal(copy, gradient.to(copy.dtype))
            for parameter, copy, gradient in zip(parameters, copies, gradients, strict=True)
        )
        right["requires_grad"] &= all(parameter.requires_grad for parameter in parameters)
        right["autograd is on"] &= torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        path.append(parameters[0].detach().flatten()[0].item())
        by_address = {tensor.data_ptr(): tensor.nbytes for tensor in state_tensors(state)}
        state_bytes.append(sum(by_address.values()))
        growth.after(step)
    return {
        "weights": [parameter.detach() for parameter in parameters],
        "views": views,
        **right,
        "grows": growth.found(),
        "bytes in state": max(state_bytes),
        "path": path,
    }


def in_memory(weight: Tensor) -> Tensor:
    """A matrix is not contiguous: it is the transpose of what is in memory."""
    return weight.clone() if weight.ndim < 2 else weight.t().contiguous().t()


def take_a_step_elsewhere(subject: Callable[..., Any], parameters: list[nn.Parameter]) -> None:
    """Of another model with a state of its own, which must not mix with the one that counts."""
    others = [nn.Parameter(-parameter.detach()) for parameter in parameters]
    for other in others:
        other.grad = torch.ones_like(other)
    subject(others, {}, LEARNING_RATES[0])


def state_tensors(state: Any) -> list[Tensor]:
    """Also those of optimizers in ``state``."""
    values = list(state.values()) if isinstance(state, dict) else []
    inside = [
        [optimizer.param_groups, [*optimizer.state.values()]]
        for optimizer in values
        if isinstance(optimizer, torch.optim.Optimizer)
    ]
    return tensors_in([state, inside])


def path_of_a_weight(attempt: Attempt) -> Curves:
    end = attempt.expected[0]["weights"][0].flatten()[0].item()
    return Curves("The first weight", {"yours": attempt.outputs[0]["path"]}, level=end)


@on_each_rank
def other_dtype(output: Any, expected: Any) -> MistakeText:
    """Before `side_effects`: gradients change with the dtype of their parameters."""
    for got, weight in zip(output["weights"], expected["weights"], strict=True):
        if got.dtype != weight.dtype:
            mistake = "leaves the parameters in another dtype: they stay 16-bit, and copy_ rounds"
            return mistake, f"{got.dtype}, not {weight.dtype}"
    return None


@on_each_rank
def replaces_memory(output: Any, expected: Any) -> MistakeText:
    if not equal(expected["weights"], output["weights"], 0.0):
        return None
    if equal(expected["views"], output["views"], 0.0):
        return None
    mistake = "gives the parameter new memory: views of it, such as a bucket's, keep the old "
    return f"{mistake}weights; write into it with copy_"


def state_limit(case: Case) -> Limit:
    """A master and a velocity, and a few bytes for each tensor."""
    weights = sum(math.prod(shape) for shape in case.params["shapes"])
    return Limit(8 * weights + 16 * len(case.params["shapes"]))


side_effects = differs_in(
    {
        IN_PLACE: "changes the gradients, or puts them elsewhere in memory: leave them as they are",
        "requires_grad": "turns the parameters' requires_grad off: they need it for later steps",
        "autograd is on": "leaves autograd off: `with torch.no_grad():` turns it on again",
    }
)
EXERCISE = OnRanks(
    points=4,
    cases=(
        masters_case("bf16, tiny updates down to 0", "bfloat16", 1 / 400, 500, to_zero=True),
        masters_case("fp16, 400 tiny updates", "float16", 1.5e-4, 400, shapes=((4, 6), (5,))),
        masters_case(
            "bf16, momentum, two of one shape",
            "bfloat16",
            2.5e-5,
            300,
            momentum=0.99,
            shapes=((3, 4), (3, 4)),
        ),
    ),
    inputs=draw_weights,
    drive=drive,
    tolerance=0.0,
    named_within=2.0**-12,  # mistakes may end near a tie
    allows=frozenset(),
    budgets=(
        Budget(
            "keeps ≤ 8 bytes for each weight in state",
            from_outputs("bytes in state"),
            state_limit,
            heading="in state",
        ),
    ),
    signs=(other_dtype, side_effects, NAMED_MISTAKES, replaces_memory, keeps_growing),
    curves=path_of_a_weight,
)
