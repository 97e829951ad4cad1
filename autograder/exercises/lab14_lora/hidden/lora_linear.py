"""Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv 2106.09685, section 4.1"""

from __future__ import annotations

from collections.abc import Callable
from operator import floordiv, truediv
from typing import Any

import torch
from torch import Tensor, nn

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab14_lora.lora_linear import (
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
Scale = Callable[[float, float], float]  # of α and r


class Layer(nn.Module):
    """``but`` names what it does wrong; ``merged_scale``: in merge(), if not ``scale``."""

    def __init__(
        self,
        base: nn.Linear,
        r: int,
        alpha: float,
        but: str = "",
        scale: Scale = truediv,
        merged_scale: Scale | None = None,
    ) -> None:
        super().__init__()
        self.linear, self.but, self.before = base.requires_grad_(False), but, list[Tensor]()
        self.A = nn.Parameter(torch.zeros(r, base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale, self.merged_scale = scale(alpha, r), (merged_scale or scale)(alpha, r)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x.detach() if self.but == "stops the gradient" else x)
        if self.before and self.but != "adds when merged":
            return y
        return y + self.scale * (x @ self.A.T @ self.B.T)

    @torch.no_grad()
    def merge(self) -> None:
        if self.before and self.but == "overwrites the original":
            self.before = [self.linear.weight.clone()]
        if self.before and self.but != "merges again":
            return
        update = self.merged_scale * (self.B @ self.A)
        if self.but == "transposes" and update.shape[0] == update.shape[1]:
            update = update.T
        self.before = [self.linear.weight.clone()]
        self.linear.weight.add_(update)

    @torch.no_grad()
    def unmerge(self) -> None:
        if self.before:
            before = self.before.pop()
            if self.but != "stays merged":
                self.linear.weight.copy_(before)


def reference(case: Case, inputs: Any, **mistake: Any) -> list[Plain]:
    """In one process, trained on all ranks' batches."""
    r, alpha, given = case.params["r"], case.params["alpha"], inputs[0]
    layers = [Layer(base_layer(*each), r, alpha, **mistake) for each in given["layers"]]
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
    ys = {key: y.chunk(case.world_size) for key, y in found.pop("y").items()}
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
        {"fresh": own, "y": {key: y[rank] for key, y in ys.items()}, **same, WITH_NAN: y}
        for rank, (own, y) in enumerate(zip(fresh, with_nan, strict=True))
    ]


def wrong(**mistake: Any) -> Callable[[Case, Any], list[Plain]]:
    """Without "form", which may be another mistake's."""
    return lambda case, inputs: [
        {key: each[key] for key in each if key != "form"}
        for each in reference(case, inputs, **mistake)
    ]


def one(alpha: float, r: float) -> float:
    return 1.0


SCALES: tuple[Scale, ...] = (
    one,
    floordiv,
    lambda alpha, r: alpha,
    lambda alpha, r: r,
    lambda alpha, r: alpha * r,
    lambda alpha, r: 1 / r,
    lambda alpha, r: r / alpha,
    lambda alpha, r: alpha / r**0.5,  # as rsLoRA
)
MISTAKES = {
    "multiplies B·A·x by another factor than α/r": tuple(wrong(scale=scale) for scale in SCALES),
    "uses α/r only in one of forward and merge(): what is merged is what forward adds": (
        wrong(merged_scale=one),
        wrong(scale=one, merged_scale=truediv),
    ),
    "merges a matrix of another shape: W [out, in] grows by B·A, not by its transpose": (
        wrong(but="transposes")
    ),
    "leaves the weight merged in unmerge: keep a clone() of the original, which a second merge() "
    "does not overwrite, and copy it back": (
        wrong(but="stays merged"),
        wrong(but="overwrites the original"),
    ),
    "merges again although it is already merged": wrong(but="merges again"),
    "adds the adapter in forward although it is merged: the weight already contains it": (
        wrong(but="adds when merged")
    ),
    "stops the gradient at the base: a frozen weight has no gradient, but the layers below need "
    "that of its input": wrong(but="stops the gradient"),
}
