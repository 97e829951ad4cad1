import itertools
from collections.abc import Callable, Container
from functools import partial
from typing import Any

import torch
from torch import nn

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab06_offload.offloaded_adam import (
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
    earlier = nn.Parameter(torch.tensor(EARLIER))
    for gradients in ([-1.0], [1.0, 1.0]):  # of a first optimizer, and of the one that replaces it
        earlier.data = earlier.data.to(HALF).float()
        optimizer = torch.optim.AdamW([earlier], **options_of_earlier(case))
        for gradient in gradients:
            earlier.grad = torch.full_like(earlier, gradient)
            optimizer.step()
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
        "moved": moved_bytes(case, {"host bfloat16": 2, "device bfloat16": 2}),
        "another optimizer's master": earlier.detach(),  # last: other mistakes change it as well
    }


def moved_bytes(case: Case, bytes_each: dict[str, int]) -> Plain:
    """What moves in each step. ``bytes_each``: {place and dtype: bytes for each element}."""
    ways = sorted((way, size * elements(case)) for way, size in bytes_each.items())
    return [ways] * case.params["steps"]


def moving(**bytes_each: int) -> Callable[[Case, Any], Plain]:
    """A mistake: right masters, but other moves."""
    ways = {way.replace("_", " "): size for way, size in bytes_each.items()}
    return lambda case, inputs: {
        "masters": trained(case, inputs),
        "moved": moved_bytes(case, ways),
    }


def trained(
    case: Case,
    inputs: Any,
    rounds_masters: bool = False,
    rebuilds: bool = False,
    skips: Container[int] = (),
    kind: type[torch.optim.Optimizer] = torch.optim.AdamW,
    **rates: Any,
) -> list[torch.Tensor]:
    """The masters after all steps. ``rounds_masters``: to 16 bits, after each step; ``skips``:
    steps that are left out."""
    masters = [nn.Parameter(weight.float()) for weight in inputs[0]["weights"]]
    rates = case.params["rates"] | rates
    adam = kind(masters, **rates)
    for step, gradients in enumerate(inputs[0]["gradients"]):
        if step in skips:
            continue
        if rebuilds:
            adam = kind(masters, **rates)
        for master, gradient in zip(masters, gradients, strict=True):
            master.grad = gradient.float()
        adam.step()
        for master in masters if rounds_masters else []:
            master.data.copy_(master.data.to(HALF).float())
    return [master.detach() for master in masters]


def with_defaults(*names: str) -> Callable[[Case, Any], Plain]:
    """A mistake: the rates of these names are not passed on."""
    rates = {name: DEFAULTS[name] for name in names}
    return lambda case, inputs: {"masters": trained(case, inputs, **rates)}


def dropped_options() -> dict[str, Callable[[Case, Any], Plain]]:
    """Mistakes: each set of options that may be dropped."""
    sizes = range(1, len(DEFAULTS) + 1)
    sets = itertools.chain.from_iterable(itertools.combinations(DEFAULTS, n) for n in sizes)
    return {f"drops {', '.join(s)}: pass all options on to AdamW": with_defaults(*s) for s in sets}


def first_only(case: Case, inputs: Any) -> Plain:
    others = [weight.float() for weight in inputs[0]["weights"][1:]]
    return {"masters": [*trained(case, inputs)[:1], *others]}


def skips_large_gradients(steps: int, case: Case, inputs: Any) -> Plain:
    """One or both of the two steps with large gradients."""
    if (large := case.params["large"]) is None:
        return None
    return {"masters": trained(case, inputs, skips=range(large + 1 - steps, large + 1))}


def swapped_betas(case: Case, inputs: Any) -> Plain:
    return {"masters": trained(case, inputs, betas=case.params["rates"]["betas"][::-1])}


MISTAKES = {
    # Compared as fp32, bit for bit: bf16's tolerance would hide most lost updates.
    "updates weights that were rounded to 16 bits: what rounding drops in one step is lost; keep "
    "fp32 masters and update those": (
        lambda case, inputs: {"as fp32": trained(case, inputs, rounds_masters=True)}
    ),
    "does not update its masters": lambda case, inputs: {
        "masters": [weight.float() for weight in inputs[0]["weights"]]
    },
    "does not update the device's weights: move the new ones up in each step, and write them into "
    "the parameters with copy_": (
        lambda case, inputs: {"as fp32": [weight.float() for weight in inputs[0]["weights"]]}
    ),
    "updates the first parameter only": first_only,
    "uses Adam, which adds weight decay to the gradient: AdamW applies it to the masters": (
        lambda case, inputs: {"masters": trained(case, inputs, kind=torch.optim.Adam)}
    ),
    **dropped_options(),
    "skips a step with large gradients: every step updates the masters": (
        partial(skips_large_gradients, 1),
        partial(skips_large_gradients, 2),
    ),
    "swaps betas: the first is for the momentum, the second for the variance": swapped_betas,
    "forgets momentum and variance after each step: create the optimizer once, in __init__": (
        # Gradients that never change give the same masters, but they have to be kept on the host.
        lambda case, inputs: {
            "masters": trained(case, inputs, rebuilds=True),
            "nothing else stays on the host": True,
        }
    ),
    "leaves out weight decay: AdamW multiplies the masters by 1 - lr·weight_decay": (
        lambda case, inputs: {"masters": trained(case, inputs, weight_decay=0.0)}
    ),
    "moves fp32 parameters up, 4Ψ bytes: round them to bf16 on the host, 2Ψ go up": moving(
        host_bfloat16=2, device_float32=4
    ),
    "converts gradients to fp32 on the device: move bf16 down, widen on the host": moving(
        host_float32=4, device_bfloat16=2
    ),
    "moves no gradients with pools.to_host: nothing else counts as a move": moving(
        device_bfloat16=2
    ),
    "moves no parameters with pools.to_device: nothing else counts as a move": (
        moving(host_bfloat16=2)
    ),
    "moves its states to the device and back in each step: update on the host, where they are": (
        moving(device_float32=12, host_float32=12)
    ),
}
