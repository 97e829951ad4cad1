import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab07_offload.offloaded_adam import (
    DEFAULTS,
    EARLIER,
    HALF,
    adam_case,
    elements,
    options_of_earlier,
)
from shardlab.placement import DEVICE, HOST

LARGE_RATES: dict[str, Any] = {"lr": 0.02, "betas": (0.7, 0.95), "eps": 0.2, "weight_decay": 0.3}
CASES = (
    adam_case("a matrix and a vector, large rates", [[48, 40], [40]], 6, large=5, **LARGE_RATES),
    adam_case(
        "odd shapes, one of them twice, default options",
        [[32, 33], [7], [5, 3, 2], [7]],
        25,
        **DEFAULTS,
    ),
)
BOUNDARIES = {
    "divides": "not tested: one rank holds the whole optimizer",
    "does not divide": "not tested, as above",
    "one rank": "one tensor, 3 steps",
    "more ranks than elements": "not tested, as above",
    "odd shapes": "odd shapes, one of them twice, default options",
    "default options": "odd shapes, one of them twice, default options",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "parameter.detach()).float()", "parameter.data).float()", "autograd records neither"
    ),
    EquivalentAnswer(
        "master.detach().bfloat16()", "master.to(parameter.dtype)", "parameters are bf16"
    ),
)


def reference(case: Case, inputs: Any) -> Plain:
    """torch's AdamW on fp32 masters with the same gradients; weights are the masters, rounded."""
    masters = trained(case, inputs)
    return {
        "parameters": [master.to(HALF) for master in masters],
        "parameters are on": [DEVICE] * len(masters),
        "masters": masters,
        "masters are on": [HOST] * len(masters),
        "12Ψ bytes of fp32 are on the host": True,
        "parameters are the rounded masters": True,
        "nothing else stays on the host": True,
        "nothing else stays on the device": True,
        "gradients unchanged": True,
        "views": [master.to(HALF) for master in masters],
        "moved": [[(f"bfloat16 to the {place}", 2 * elements(case)) for place in (DEVICE, HOST)]]
        * case.params["steps"],
        # last: other mistakes change it as well
        "another optimizer's master": of_earlier(options_of_earlier(case)),
    }


def of_earlier(options: dict[str, Any], shares_masters: bool = False) -> torch.Tensor:
    earlier = nn.Parameter(torch.tensor(EARLIER))
    for gradients in ([-1.0], [1.0, 1.0]):  # of a first optimizer, and of the one that replaces it
        if not shares_masters:
            earlier.data = earlier.data.to(HALF).float()
        optimizer = torch.optim.AdamW([earlier], **options)
        for gradient in gradients:
            earlier.grad = torch.full_like(earlier, gradient)
            optimizer.step()
    return earlier.detach()


def trained(
    case: Case,
    inputs: Any,
    rounds_masters: bool = False,
    rebuilds: bool = False,
    kind: type[torch.optim.Optimizer] = torch.optim.AdamW,
    **rates: Any,
) -> list[torch.Tensor]:
    """The masters after all steps. ``rounds_masters``: to 16 bits, after each step."""
    masters = [nn.Parameter(weight.float()) for weight in inputs[0]["weights"]]
    rates = case.params["rates"] | rates
    adam = kind(masters, **rates)
    for gradients in inputs[0]["gradients"]:
        if rebuilds:
            adam = kind(masters, **rates)
        for master, gradient in zip(masters, gradients, strict=True):
            master.grad = gradient.float()
        adam.step()
        for master in masters if rounds_masters else []:
            master.data.copy_(master.data.to(HALF).float())
    return [master.detach() for master in masters]


def with_defaults(names: tuple[str, ...]) -> Callable[[Case, Any], Plain]:
    """A mistake: the rates of these names are not passed on."""
    rates = {name: DEFAULTS[name] for name in names}
    return lambda case, inputs: {"masters": trained(case, inputs, **rates)}


def only_vectors(case: Case, inputs: Any) -> Plain:
    pairs = zip(inputs[0]["weights"], trained(case, inputs), strict=True)
    return {
        "as fp32": [old.float() if old.ndim == 2 else new.to(HALF).float() for old, new in pairs]
    }


def with_another(shares_masters: bool = False, **changes: float) -> Callable[[Case, Any], Plain]:
    """A mistake that shows in the other optimizer only."""

    def outputs(case: Case, inputs: Any) -> Plain:
        master = of_earlier(options_of_earlier(case) | changes, shares_masters)
        return {"masters": trained(case, inputs), "another optimizer's master": master}

    return outputs


def only(number: int) -> Callable[[Case, Any], Plain]:
    """A mistake: the other parameters are not updated."""

    def outputs(case: Case, inputs: Any) -> Plain:
        masters = [weight.float() for weight in inputs[0]["weights"]]
        masters[number] = trained(case, inputs)[number]
        return {"masters": masters}

    return outputs


MISTAKES = {
    # Compared as fp32, bit for bit: bf16's tolerance would hide most lost updates.
    "updates weights that were rounded to 16 bits: what rounding drops in one step is lost; keep "
    "fp32 masters and update those": (
        lambda case, inputs: {"as fp32": trained(case, inputs, rounds_masters=True)}
    ),
    "does not update the device's weights: move the new ones up in each step, and write them into "
    "the parameters with copy_": (
        lambda case, inputs: {"as fp32": [weight.float() for weight in inputs[0]["weights"]]}
    ),
    "does not update transposed parameters: reshape, flatten and contiguous make a copy of one, so "
    "use copy_ on the parameter itself": only_vectors,
    "updates only one of the parameters": (only(0), only(-1)),
    "adds weight decay to the gradient, as Adam does: AdamW shrinks the master instead": (
        lambda case, inputs: {"masters": trained(case, inputs, kind=torch.optim.Adam)}
    ),
    "takes the default for weight_decay=0, which means no decay at all": with_another(
        weight_decay=DEFAULTS["weight_decay"]
    ),
    "shares masters with an earlier optimizer of the same parameters: make new ones in __init__": (
        with_another(shares_masters=True)
    ),
    "drops options: pass all of them on to AdamW": tuple(
        with_defaults(names)
        for size in range(1, len(DEFAULTS) + 1)
        for names in itertools.combinations(DEFAULTS, size)
    ),
    "forgets momentum and variance after each step: create the optimizer once, in __init__": (
        # Gradients that never change give the same masters, but they have to be kept on the host.
        lambda case, inputs: {
            "masters": trained(case, inputs, rebuilds=True),
            "nothing else stays on the host": True,
        }
    ),
}
