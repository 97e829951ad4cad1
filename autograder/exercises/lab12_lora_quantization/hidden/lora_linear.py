"""Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv 2106.09685, section 4.1"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab12_lora_quantization.lora_linear import (
    ADAPTER,
    WITH_NAN,
    base_layer,
    case_of,
    load_adapter,
    loss_of,
    names_of_all,
    run_actions,
    sgd_step,
    stacked,
)

CASES = (
    with_random_delays(case_of("3 ranks, three layers", 3, [9, 11, 11, 4], 5, 3.0)),
    case_of("2 ranks, r above the width", 2, [3, 8, 2], 6, 6.5, bias=False),
    case_of("4 ranks, larger adapters", 4, [401, 390, 377], 23, 6.5),
)
BOUNDARIES = {
    "divides": "2 ranks, two square layers",
    "does not divide": "3 ranks, 128 kB of adapters",
    "one rank": "1 rank, one layer",
    "more ranks than elements": "not tested: DDP decides how to divide what it sends",
    "no bias": "2 ranks, two square layers",
    "r above the width": "2 ranks, r above the width",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer("self.B @ self.A", "(self.A.T @ self.B.T).T", "(XY)ᵀ = YᵀXᵀ"),
)
Scale = Callable[[float, float], float]  # of r and α


@dataclass(frozen=True)
class Behavior:
    """What a layer does; the defaults are correct."""

    scale: Scale = lambda r, alpha: alpha / r
    merged_scale: Scale | None = None  # default: ``scale``
    merges_transpose: bool = False  # of square weights
    merges_again: bool = False  # a second merge() adds the adapter again
    adds_after_merge: bool = False
    unmerges: bool = True
    stops_gradient: bool = False  # of the input, at the base
    stops_at_adapter: bool = False


class Layer(nn.Module):
    def __init__(self, base: nn.Linear, r: int, alpha: float, how: Behavior) -> None:
        super().__init__()
        self.linear, self.how, self.before = base.requires_grad_(False), how, list[Tensor]()
        self.A = nn.Parameter(torch.zeros(r, base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = how.scale(r, alpha)
        self.merged_scale = (how.merged_scale or how.scale)(r, alpha)

    def forward(self, x: Tensor) -> Tensor:
        into_base = x.detach() if self.how.stops_gradient else x
        y = linear(into_base, self.linear.weight, self.linear.bias)
        if self.before and not self.how.adds_after_merge:
            return y
        into_adapter = x.detach() if self.how.stops_at_adapter else x
        return y + self.scale * (into_adapter @ self.A.T @ self.B.T)

    @torch.no_grad()
    def merge(self) -> None:
        if self.before and not self.how.merges_again:
            return
        update = self.merged_scale * (self.B @ self.A)
        if self.how.merges_transpose and update.shape[0] == update.shape[1]:
            update = update.T
        self.before = [self.linear.weight.clone()]
        self.linear.weight.add_(update)

    @torch.no_grad()
    def unmerge(self) -> None:
        if self.before:
            before = self.before.pop()
            if self.how.unmerges:
                self.linear.weight.copy_(before)


def reference(case: Case, inputs: Any, how: Behavior | None = None) -> list[Plain]:
    """In one process, trained on all ranks' batches."""
    r, alpha, given = case.params["r"], case.params["alpha"], inputs[0]
    layers = [Layer(base_layer(*each), r, alpha, how or Behavior()) for each in given["layers"]]
    model = stacked(layers)
    x = torch.cat([each["x"] for each in inputs])
    with torch.no_grad():
        fresh = model(x).chunk(case.world_size)
    for layer, adapter in zip(layers, given["adapters"], strict=True):
        load_adapter(layer, *adapter)
    steps = iter(zip(*(each["batches"] for each in inputs), strict=True))

    def train() -> None:
        torch.stack([loss_of(model, batch) for batch in next(steps)]).mean().backward()
        sgd_step(model, case.params["learning_rate"])

    found = run_actions(layers, model, train, x)
    by_rank = zip(*(y.chunk(case.world_size) for y in found.pop("y")), strict=True)
    with_nan = found.pop(WITH_NAN).chunk(case.world_size)
    names, registered = [ADAPTER] * len(layers), names_of_all(layers)
    same = {
        **found,
        "trained": names,
        "trained in the end": names,
        "form": {
            "linear is the given one": True,
            "registered": registered,
            "registered when merged": registered,
        },
    }
    return [
        {**same, "fresh": own, "y": list(ys), WITH_NAN: y}
        for own, ys, y in zip(fresh, by_rank, with_nan, strict=True)
    ]


def with_mistake(**how: Any) -> Callable[[Case, Any], list[Plain]]:
    """Without "form", which may be another mistake's."""

    def of(case: Case, inputs: Any) -> list[Plain]:
        of_ranks = reference(case, inputs, how=Behavior(**how))
        return [{key: each[key] for key in each if key != "form"} for each in of_ranks]

    return of


MISTAKES = {
    "omits α/r: the product B·A·x is multiplied by α/r": with_mistake(scale=lambda r, alpha: 1.0),
    "scales by α alone: divide it by r": with_mistake(scale=lambda r, alpha: alpha),
    "scales by r: the factor is α/r": with_mistake(scale=lambda r, alpha: r),
    "scales by 1/r: the factor is α/r": with_mistake(scale=lambda r, alpha: 1 / r),
    "scales by r/α: the factor is α/r": with_mistake(scale=lambda r, alpha: r / alpha),
    "scales by α/√r, as rsLoRA does: the factor is α/r here": with_mistake(
        scale=lambda r, alpha: alpha / r**0.5
    ),
    "rounds α/r to a whole number: divide with /": with_mistake(scale=lambda r, alpha: alpha // r),
    "merges B·A without α/r: what is merged is what forward adds": with_mistake(
        merged_scale=lambda r, alpha: 1.0
    ),
    "merges a matrix of another shape: W [out, in] grows by B·A, not by its transpose": (
        with_mistake(merges_transpose=True)
    ),
    "leaves the weight merged in unmerge: keep a clone() of the original, which a second merge() "
    "does not overwrite, and copy it back": with_mistake(unmerges=False),
    "merges again although it is already merged": with_mistake(merges_again=True),
    "adds the adapter in forward although it is merged: the weight already contains it": (
        with_mistake(adds_after_merge=True)
    ),
    "stops the gradient at the base: a frozen weight has no gradient, but the layers below need "
    "that of its input": with_mistake(stops_gradient=True),
    "stops the gradient at the adapter: the layers below need the gradient of its input": (
        with_mistake(stops_at_adapter=True)
    ),
}
