"""The rule, and what each mistake makes of it, on all ranks in one process."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EqualAnswer
from autograder.exercises.lab01_one_device.dynamic_loss_scaler import (
    LEARNING_RATE,
    loss_of,
    output_of,
    scaler_case,
)

CASES = (
    scaler_case("5 ranks, overflows in a row", 5, {2: (4, "inf"), 3: (3, "nan"), 4: (0, "inf")}),
    scaler_case(
        "2 ranks, another interval",
        2,
        {1: (1, "inf"), 6: (0, "nan"), 7: (1, "inf")},
        steps=16,
        scale=2.0**15,
        growth_interval=4,
    ),
    scaler_case("3 ranks, a small scale", 3, {5: (2, "nan")}, scale=4.0, growth_interval=2),
)
BOUNDARIES = {
    "divides": "not asked: nothing is divided among ranks",
    "does not divide": "not asked, as above",
    "more ranks than elements": "not asked, as above",
    "one rank": "1 rank, overflows twice",
    "overflows in the step that would double the scale": "1 rank, overflows twice",
    "overflows one after the other": "5 ranks, overflows in a row",
    "no overflow": "2 ranks, nothing overflows",
}
EQUAL_ANSWERS = (
    EqualAnswer(", op=dist.ReduceOp.MAX", "", "a sum above 0 says that a rank overflowed, too"),
    EqualAnswer("gradient /= self.scale", "gradient *= 1 / self.scale", "exact: a power of two"),
)


def reference(case: Case, inputs: Any, mistake: str = "") -> list[Plain]:
    ranks = [Rank(given["weights"], case.params["scale"], mistake) for given in inputs]
    for step in range(case.params["steps"]):
        pairs = zip(ranks, inputs, strict=True)
        bad = [rank.backward(given["x"][step]) for rank, given in pairs]
        for rank, own in zip(ranks, bad, strict=True):
            rank.step(own, any(bad), case.params["growth_interval"])
    return [output_of(rank.steps, rank.scales, rank.weights) for rank in ranks]


class Rank:
    def __init__(self, weights: Tensor, scale: float, mistake: str) -> None:
        self.weights, self.scale, self.mistake = weights.clone(), scale, mistake
        self.good_steps = 0
        self.steps: list[int] = []
        self.scales: list[Plain] = []

    def backward(self, x: Tensor) -> bool:
        """Whether its gradient overflowed."""
        leaf = self.weights.clone().requires_grad_()
        (self.gradient,) = torch.autograd.grad(loss_of(leaf, x) * self.scale, leaf)
        is_bad = {"no nan": torch.isinf, "no inf": torch.isnan}.get(self.mistake)
        return bool((is_bad or not_finite)(self.gradient).any())

    def step(self, own: bool, anywhere: bool, growth_interval: int) -> None:
        mistake = self.mistake
        overflow = own if mistake == "only its own" else anywhere
        skips = own if mistake == "skips alone" else overflow
        if mistake == "steps all the same":
            skips = False
        before, self.scale = self.scale, self.next_scale(overflow, growth_interval)
        if not skips:
            divisors = {"never unscales": 1.0, "unscales twice": before**2}
            divisors["unscales by the new scale"] = self.scale
            self.weights -= LEARNING_RATE * self.gradient / divisors.get(mistake, before)
        self.steps.append(int(not skips))
        self.scales.append(self.scale)

    def next_scale(self, overflow: bool, growth_interval: int) -> float:
        mistake = self.mistake
        if overflow:
            if mistake != "keeps counting past an overflow":
                self.good_steps = 0
            return self.scale if mistake == "never halves" else self.scale / 2
        self.good_steps += 1
        interval = 1 if mistake == "grows in every step" else growth_interval
        if self.good_steps < interval + (mistake == "grows one step late"):
            return self.scale
        if mistake != "keeps counting past a growth":
            self.good_steps = 0
        return self.scale if mistake == "never grows" else self.scale * 2


def not_finite(gradient: Tensor) -> Tensor:
    return ~gradient.isfinite()


def wrong(case: Case, inputs: Any, mistake: str) -> list[Plain]:
    """Without all the weights: a few of them tell."""
    outputs = reference(case, inputs, mistake)
    return [{key: out[key] for key in out if key != "weights"} for out in outputs]


SAID = {
    "only its own": "looks at its own gradients only: when one rank overflows, all ranks skip and "
    "halve",
    "skips alone": "steps although another rank overflowed: when one overflows, all ranks skip",
    "no nan": "looks for inf and lets nan pass: inf - inf is nan, ask torch.isfinite",
    "no inf": "looks for nan and lets inf pass: ask torch.isfinite",
    "steps all the same": "halves the scale and steps all the same: inf or nan is in the weights",
    "never unscales": "steps with scaled gradients: divide them by the scale first",
    "unscales twice": "divides the gradients by the scale twice",
    "unscales by the new scale": "divides by the scale of the next step: unscale before it grows",
    "grows in every step": "grows after every good step: wait for growth_interval of them in a row",
    "keeps counting past an overflow": "counts on past an overflow: good steps are counted from 0 "
    "after it",
    "keeps counting past a growth": "counts on past a growth: after it, growth_interval good steps "
    "have to come again",
    "grows one step late": "grows one step late: in the very step that makes growth_interval",
    "never grows": "never grows the scale: it doubles after growth_interval good steps in a row",
    "never halves": "never halves the scale: it would overflow again and again",
}
MISTAKES = {said: partial(wrong, mistake=mistake) for mistake, said in SAID.items()}
