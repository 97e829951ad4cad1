"""An optimizer with its states on the host, driven with given gradients.

The drive puts 16-bit weights on the device, sets one gradient per step, and counts what moves
between the pools.  Gradients are given, so Adam's results are exact up to fp32 rounding; each
element's gradient keeps its sign, so a lost update differs from a rounded one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.exercise import (
    NAMED_MISTAKES,
    Budget,
    Case,
    Limit,
    OnRanks,
    Plain,
    equal,
    from_outputs,
)
from autograder.exercise.signs import MistakeText, differs_in, keeps_growing, on_each_rank, raises
from autograder.guest.growth import Growth, storages
from shardlab.placement import DEVICE, HOST, Pools

HALF = torch.bfloat16
# Adam keeps its step count in 0-dim fp32 tensors, which may be anywhere.
SCALARS_BYTES = 256
DEFAULTS: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
# Of two steps, one after the other; their squares are still finite.  A common scale does not matter
# to Adam: clipping shows only where large gradients differ in size.
TIMES_LARGER = 2.0**30, 2.0**40
# Of a second optimizer, which is stepped before and after the one under test; one small parameter,
# whose masters are never exact in bf16.
EARLIER, NO_DECAY = [0.5, -0.25, 1.0], {"lr": 0.3, "weight_decay": 0.0}


def adam_case(
    name: str,
    shapes: list[list[int]],
    steps: int,
    zero: tuple[int, int] | None = None,
    large: int | None = None,
    **rates: Any,
) -> Case:
    """None of the rates is a default, so that each shows if it is dropped.

    zero: step and index of a gradient of zeros, which AdamW does not skip.
    large: a step that has, like the one before it, gradients ``TIMES_LARGER``; AdamW does not skip
    them either.
    """
    rates = {"lr": 0.01, "betas": (0.8, 0.99), "eps": 0.05, "weight_decay": 0.1} | rates
    return Case(
        name, 1, {"shapes": shapes, "steps": steps, "rates": rates, "zero": zero, "large": large}
    )


def elements(case: Case) -> int:
    """Ψ, the number of elements."""
    return sum(int(np.prod(shape)) for shape in case.params["shapes"])


def draw_training(case: Case, rng: np.random.Generator) -> Plain:
    """Weights of 0.25 to 1 and gradients of 0.5 to 1.5, of either sign: none near zero, except in
    the case's steps with zeros and with large gradients."""

    def tensors(draw: Callable[..., Any], *given: Any) -> list[torch.Tensor]:
        return [torch.from_numpy(draw(*given, shape)).to(HALF) for shape in case.params["shapes"]]

    sizes, signs = tensors(rng.uniform, 0.25, 1), tensors(rng.choice, [-1.0, 1.0])
    gradient_signs, steps = tensors(rng.choice, [-1.0, 1.0]), range(case.params["steps"])
    gradient_sizes = (tensors(rng.uniform, 0.5, 1.5) for _ in steps)
    gradients = [list(map(torch.mul, each, gradient_signs)) for each in gradient_sizes]
    if case.params["zero"]:
        step, i = case.params["zero"]
        gradients[step][i] = torch.zeros_like(gradients[step][i])
    if (large := case.params["large"]) is not None:
        for step, factor in zip((large - 1, large), TIMES_LARGER, strict=True):
            gradients[step] = [factor * gradient for gradient in gradients[step]]
    return {"weights": list(map(torch.mul, sizes, signs)), "gradients": gradients}


def transposed(weight: torch.Tensor) -> torch.Tensor:
    """A copy whose elements are in memory by column."""
    return weight.T.contiguous().T if weight.ndim == 2 else weight.clone()


def options_of_earlier(case: Case) -> dict[str, Any]:
    return {} if case.params["rates"] == DEFAULTS else NO_DECAY


class EarlierOptimizer:
    """Another optimizer of the same program, which replaces a first one of the same parameter:
    none of the three may share anything."""

    def __init__(self, subject: Any, case: Case) -> None:
        self.weight, self.pools = nn.Parameter(torch.tensor(EARLIER, dtype=HALF)), Pools("cpu")
        with self.pools:
            self.first = subject([self.weight], self.pools, **options_of_earlier(case))
            self.weight.grad = -torch.ones_like(self.weight)
            self.first.step()
            self.optimizer = subject([self.weight], self.pools, **options_of_earlier(case))

    def step(self) -> torch.Tensor:
        """The master after the step."""
        self.weight.grad = torch.ones_like(self.weight)
        with self.pools:
            self.optimizer.step()
        self.weight.grad = None
        return self.optimizer.masters[0].detach().clone()


def drive(subject: Any, given: Plain, case: Case) -> Plain:
    made: list[Any] = []
    parameters: list[nn.Parameter] = []

    def create(of: list[nn.Parameter], pools: Pools, **options: Any) -> Any:
        parameters.extend(of)
        made.append(subject(of, pools, **options))
        return made[-1]

    try:
        return stepped(create, given, case)
    except RuntimeError as error:  # they have different pools and shapes: it may name these instead
        if where := shared_by(made, parameters):
            keep = "keep masters, momentum and variance in self"
            error.args = (f"two optimizers hold {where}: {keep}",)
        raise


def shared_by(optimizers: list[Any], parameters: list[nn.Parameter]) -> str:
    """Where a tensor is that two optimizers hold, besides parameters and their gradients."""
    with_gradients = (each for one in parameters for each in (one, one.grad) if each is not None)
    given = {each.untyped_storage().data_ptr() for each in with_gradients}
    held: set[int] = set()
    for optimizer in optimizers:
        found = [(at, name) for name, at, size in storages({"self": optimizer}) if size]
        for at, name in found:
            if at in held - given:
                return name
        held |= {at for at, _ in found}
    return ""


def stepped(subject: Any, given: Plain, case: Case) -> Plain:
    """Steps the student's optimizer, and reports where things were and what moved."""
    earlier = EarlierOptimizer(subject, case)
    parameters = [nn.Parameter(transposed(weight)) for weight in given["weights"]]
    views = [parameter.detach() for parameter in parameters]
    pools, on_device, on_host = Pools("cpu"), [], []
    kept: dict[str, int] = {}
    moved: list[list[tuple[str, int]]] = []  # in each step: dtype and where to, how much
    with pools:
        options = {} if case.params["rates"] == DEFAULTS else case.params["rates"]
        optimizer = subject([*parameters], pools, **options)
    earlier.step()
    growth = Growth({"self": optimizer})
    unchanged = True
    for step, right in enumerate(given["gradients"]):
        # Created outside the pools: a gradient is on the device from its first use to its end.
        gradients = [gradient.clone() for gradient in right]
        before = len(pools.moves)
        with pools:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
        moved_bytes: Counter[str] = Counter()
        for move in pools.moves[before:]:
            moved_bytes[f"{move.dtype} to the {move.to}"] += move.bytes
        growth.after(step)
        moved.append(sorted(moved_bytes.items()))
        unchanged = unchanged and all(map(torch.equal, gradients, right))
        del gradient, gradients
        for parameter in parameters:
            parameter.grad = None
        on_device.append(sum(pools.live_bytes(DEVICE).values()))
        kept = pools.live_bytes(HOST)
        on_host.append(sum(kept.values()))
    earlier_master = earlier.step()
    masters = [master.detach() for master in optimizer.masters]
    states_bytes = pools.live_bytes(HOST).get("float32", 0)
    peak, size = pools.peak_bytes(DEVICE), elements(case)
    return {
        "another optimizer's master": earlier_master,
        "parameters": [parameter.detach() for parameter in parameters],
        "as fp32": [parameter.detach().float() for parameter in parameters],
        "views": views,
        "parameters are on": [pools.place_of(parameter) for parameter in parameters],
        "masters": masters,
        "masters are on": [pools.place_of(master) for master in masters],
        "parameters are the rounded masters": all(
            torch.equal(master.detach().to(HALF), parameter.detach())
            for master, parameter in zip(masters, parameters, strict=False)
        ),
        "gradients unchanged": unchanged,
        "grows": growth.found(),
        "moved": moved,
        "moved in a step": max(sum(size for _, size in ways) for ways in moved),
        "12Ψ bytes of fp32 are on the host": states_bytes >= 12 * size,
        "kept on the host": sorted(kept.items()),
        "nothing else stays on the host": max(on_host) <= 12 * size + SCALARS_BYTES,
        "nothing else stays on the device": max(on_device) <= 2 * size + SCALARS_BYTES,
        "fp32 on the device": peak.get("float32", 0),
        "not 16-bit on the device": sum(peak.values())
        - peak.get("bfloat16", 0)
        - peak.get("float16", 0),
    }


@on_each_rank
def keeps_more_on_the_host(output: Any, case: Case) -> MistakeText:
    """After NAMED_MISTAKES: rounded masters and lost states also change what is kept."""
    if output["nothing else stays on the host"]:
        return None
    kept = " and ".join(f"{size:,} bytes of {dtype}" for dtype, size in output["kept on the host"])
    mistake = "keeps more than masters, momentum and variance on the host between steps"
    return mistake, f"{kept}, where 12Ψ = {12 * elements(case):,}"


writes_into_gradients = differs_in(
    {"gradients unchanged": "writes into the gradients on the device: change a copy, or the master"}
)
other_states = differs_in(
    {
        "nothing else stays on the device": "keeps more than the parameters on the device between "
        "steps, once their gradients are dropped",
        "parameters are the rounded masters": "has parameters that are not exactly its masters, "
        "rounded to bf16",
    }
)
no_flat_view = raises(
    "view size is not compatible",
    "asks for a flat view of a transposed parameter, which has none (and reshape makes a copy): "
    "use copy_ on the parameter in its own shape",
    who="your answer",
)
wrong_pools = raises("^PoolError: ", "uses its pools wrongly", who="your answer", quoted=True)


@on_each_rank
def other_moves(output: Any, expected: Any, case: Case) -> MistakeText:
    for ways, wanted in zip(output["moved"], expected["moved"], strict=True):
        if ways != wanted:
            shown = [f"{size / elements(case):.3g}Ψ bytes of {way}" for way, size in ways]
            mistake = (
                "should move the gradients to the host and the new parameters to the device in "
                "each step, in bf16, with pools.to_host and pools.to_device, and nothing else"
            )
            return mistake, f"it moves {' and '.join(shown) or 'nothing'} in a step"
    return None


@on_each_rank
def fp32_on_the_device(output: Any) -> MistakeText:
    if output["fp32 on the device"] <= SCALARS_BYTES:
        return None
    mistake = (
        "has fp32 tensors on the device: all of them belong on the host, and only pools.to_host "
        "moves a tensor there"
    )
    return mistake, f"{output['fp32 on the device']:,} bytes at the peak"


@on_each_rank
def new_memory(output: Any) -> MistakeText:
    if equal(output["parameters"], output["views"], 0.0):
        return None
    return (
        "gives the parameter new memory: views of it, such as a bucket's, keep the old weights; "
        "write into it with copy_"
    )


EXERCISE = OnRanks(
    answer="OffloadedAdam",
    points=6,
    cases=(
        adam_case("one tensor, 3 steps", [[64, 64]], 3, large=2),
        adam_case("four tensors, 10 steps", [[96, 32], [32], [96, 32], [96]], 10, zero=(4, 1)),
    ),
    inputs=draw_training,
    drive=drive,
    budgets=(
        Budget(
            "moves 2Ψ bytes down and 2Ψ up in a step",
            from_outputs("moved in a step"),
            lambda case: Limit(4 * elements(case)),
            "moved in a step",
        ),
        Budget(
            "no fp32 on the device",
            from_outputs("not 16-bit on the device"),
            lambda case: Limit(SCALARS_BYTES),
            "fp32 on the device",
        ),
    ),
    allows=frozenset(),
    rules=(keeps_growing,),
    signs=(
        wrong_pools,
        no_flat_view,
        writes_into_gradients,
        NAMED_MISTAKES,
        other_moves,
        fp32_on_the_device,
        keeps_more_on_the_host,
        new_memory,
        other_states,
    ),
)
