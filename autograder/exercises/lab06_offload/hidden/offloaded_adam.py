from typing import Any

import torch
from torch import nn

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EqualAnswer
from autograder.exercises.lab06_offload.offloaded_adam import HALF, adam_case, elements
from shardlab.pools import DEVICE, HOST

LARGE_RATES = {"lr": 0.02, "betas": (0.8, 0.95), "weight_decay": 0.1}
SMALL_RATES = {"lr": 0.003, "weight_decay": 0.0}
CASES = (
    adam_case("a matrix and a vector, large rates", [[48, 40], [40]], 6, **LARGE_RATES),
    adam_case("three odd shapes, 25 steps", [[32, 33], [7], [5, 3, 2]], 25, **SMALL_RATES),
)
BOUNDARIES = {
    "divides": "not tested: one rank holds the whole optimizer",
    "does not divide": "not tested, as above",
    "one rank": "one tensor, 3 steps",
    "more ranks than elements": "not tested, as above",
    "odd shapes": "three odd shapes, 25 steps",
    "no weight decay": "three odd shapes, 25 steps",
}
EQUAL_ANSWERS = (
    EqualAnswer(
        "parameter.detach()).float()", "parameter.data).float()", "autograd records neither"
    ),
    EqualAnswer("master.detach().bfloat16()", "master.to(parameter.dtype)", "parameters are bf16"),
)


def reference(case: Case, inputs: Any) -> Plain:
    """torch's AdamW on fp32 masters with the same gradients; weights are the masters, rounded."""
    masters = trained(case, inputs)
    moved = dict.fromkeys(("host bfloat16", "device bfloat16"), 2 * elements(case))
    return {
        "parameters": [master.to(HALF) for master in masters],
        "parameters are on": [DEVICE] * len(masters),
        "masters": masters,
        "masters are on": [HOST] * len(masters),
        "12Ψ bytes of fp32 are on the host": True,
        "moved": [moved] * case.params["steps"],
    }


def trained(
    case: Case, inputs: Any, rounds_masters: bool = False, **rates: float
) -> list[torch.Tensor]:
    """The masters after all steps. ``rounds_masters``: to 16 bits, after each step."""
    masters = [nn.Parameter(weight.float()) for weight in inputs[0]["weights"]]
    adam = torch.optim.AdamW(masters, **case.params["rates"] | rates)
    for gradients in inputs[0]["gradients"]:
        for master, gradient in zip(masters, gradients, strict=True):
            master.grad = gradient.float()
        adam.step()
        for master in masters if rounds_masters else []:
            master.data.copy_(master.data.to(HALF).float())
    return [master.detach() for master in masters]


MISTAKES = {
    # Compared as fp32, bit for bit: bf16's tolerance would hide most lost updates.
    "updates the stale 16-bit weights: what rounding drops in one step is lost; keep fp32 "
    "masters and update those": (
        lambda case, inputs: {"as fp32": trained(case, inputs, rounds_masters=True)}
    ),
    "does not update its masters": lambda case, inputs: {
        "masters": [weight.float() for weight in inputs[0]["weights"]]
    },
    "does not update the device's weights: move the new ones up in each step": (
        lambda case, inputs: {"parameters": inputs[0]["weights"]}
    ),
    "leaves out weight decay: AdamW multiplies the masters by 1 - lr·weight_decay": (
        lambda case, inputs: {"masters": trained(case, inputs, weight_decay=0.0)}
    ),
}
