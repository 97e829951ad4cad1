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
from autograder.exercise.signs import MistakeText, on_each_rank, over_budget
from autograder.guest.growth import Growth
from shardlab.trace.tensors import tensors_in

LEARNING_RATES = (0.1, 0.05)  # of the first and the second half of the steps
BYTES_OF_A_WEIGHT, MORE_BYTES = 8, 16  # in state: a master and a velocity; more for each tensor


def masters_case(name: str, dtype: str, update: float, steps: int, **changes: Any) -> Case:
    """update: how far one early step moves a weight, without momentum; in shares of the weight if
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
    gradients = case.params["update"] / LEARNING_RATES[0] * sign * noise
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


SIDE_EFFECTS = {
    "gradients unchanged": "changes the caller's gradients: leave .grad as it is, in its memory",
    "requires_grad": "leaves requires_grad off, so the next backward pass gives no gradients: "
    "change the parameters under torch.no_grad()",
    "autograd is on": "leaves autograd off after the call: `with torch.no_grad():` ends with the "
    "block",
}


def drive(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    parameters = [nn.Parameter(in_memory(weight)) for weight in given["weights"]]
    views = [parameter.detach() for parameter in parameters]
    state: dict[Any, Any] = {}
    take_a_step_elsewhere(subject, parameters)
    path: list[float] = []
    state_bytes: list[int] = []
    growth = Growth({"state": state})
    right = dict.fromkeys(SIDE_EFFECTS, True)
    for step, gradients in enumerate(zip(*given["gradients"], strict=True)):
        copies: list[Tensor] = []
        for parameter, gradient in zip(parameters, gradients, strict=True):
            # torch wants equal dtypes: a weight left in fp32 gets an fp32 gradient
            copies.append(gradient.to(parameter.dtype, copy=True))
            parameter.grad = copies[-1]
        places = [(copy.data_ptr(), copy.dtype) for copy in copies]
        momentum = (case.params["momentum"],) if case.params["momentum"] else ()
        subject(parameters, state, learning_rate(step, case), *momentum)
        right["gradients unchanged"] &= places == [(g.data_ptr(), g.dtype) for g in copies] and all(
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
        "state grows": bool(growth.found()),
        "what grows": growth.found(),
        "bytes in state": max(state_bytes),
        "state": [tensor.detach() for tensor in state_tensors(state)],
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
def never_writes_back(output: Any, given: Any, expected: Any) -> MistakeText:
    """Weights are as they were, all or those in matrices, and ``state`` has the right ones."""
    before, got = given["weights"], output["weights"]
    wanted = expected["weights"]
    if not isinstance(got, list) or len(got) != len(wanted):
        return None
    wide = [tensor for tensor in output["state"] if tensor.dtype in (torch.float32, torch.float64)]
    masters = [tensor.flatten().to(wanted[0].dtype) for tensor in wide]
    if not all(any(torch.equal(right.flatten(), one) for one in masters) for right in wanted):
        return None
    if equal(before, got, 0.0):
        mistake = "never writes back: copy the master into the 16-bit weight after each step"
        only_matrices = all(old.ndim > 1 for old in before)
        return mistake + " (flatten() and reshape() of a matrix copy it)" * only_matrices
    in_matrices = [old if old.ndim > 1 else new for old, new in zip(before, wanted, strict=True)]
    if equal(in_matrices, got, 0.0) and not equal(wanted, got, 0.0):
        return (
            "never writes back into parameters that are not contiguous: flatten() and reshape() "
            "copy them"
        )
    return None


@on_each_rank
def side_effect(output: Any) -> MistakeText:
    """The weights may be right; what else the step changes is not."""
    if not equal(output["weights"], output["views"], 0.0):
        return (
            "gives the parameter new memory: views of it, such as a bucket's, keep the old "
            "weights; write into it with copy_"
        )
    for key, mistake in SIDE_EFFECTS.items():
        if not output[key]:
            return mistake
    if output["state grows"]:
        mistake = (
            "keeps more in state with every step: a master and a velocity per weight are enough"
        )
        return mistake, str(output["what grows"][0])
    return None


def weight_bytes_limit(case: Case) -> Limit:
    weights = sum(math.prod(shape) for shape in case.params["shapes"])
    return Limit(BYTES_OF_A_WEIGHT * weights + MORE_BYTES * len(case.params["shapes"]))


SMALL_STATE = Budget(
    "keeps ≤ 8 bytes for each weight in state",
    from_outputs("bytes in state"),
    weight_bytes_limit,
    heading="in state",
)
keeps_more = over_budget(
    SMALL_STATE.heading, "keeps more in state than an fp32 master and an fp32 velocity per weight"
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
    budgets=(SMALL_STATE,),
    signs=(never_writes_back, NAMED_MISTAKES, side_effect, keeps_more),
    curves=path_of_a_weight,
)
