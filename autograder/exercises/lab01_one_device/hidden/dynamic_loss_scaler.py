"""The reference, right and with each mistake, for all ranks in one process."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab01_one_device.dynamic_loss_scaler import (
    TENSORS,
    loss_of,
    output_of,
    rate_and_decay,
    scaler_case,
)
from autograder.exercises.lab01_one_device.hidden.shared import NOT_SHARDED

PLAN = {1: (1, "-inf"), 6: (0, "nan"), 7: (1, "inf")}
CASES = (
    scaler_case(
        "5 ranks, overflows in a row",
        5,
        {2: ((1, 4), "inf"), 3: ((0, 1, 4), "nan"), 4: (0, "-inf"), 9: (4, "from 2**16")},
    ),
    scaler_case(
        "2 ranks, another interval",
        2,
        PLAN,
        steps=16,
        scale=2.0**15,
        growth_interval=4,
        largest=2.0**-10,
    ),
    with_random_delays(
        scaler_case(
            "3 ranks, a small scale",
            3,
            {5: (2, "nan"), 7: (0, "none")},
            scale=4.0,
            growth_interval=2,
        )
    ),
)
BOUNDARIES = NOT_SHARDED | {
    "one rank": "1 rank, overflows twice",
    "overflows in the step that would double the scale": "1 rank, overflows twice",
    "overflows one after the other": "3 ranks, overflows in a row",
    "two ranks overflow at once": "5 ranks, overflows in a row",
    "a rank without gradients where the scale grows": "3 ranks, a small scale",
    "no overflow": "2 ranks, nothing overflows",
    "a rank without gradients": "4 ranks, a nan; rank 3 once has no gradients",
    "a scale below 1": "1 rank, nans, scales below 1",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        ", op=dist.ReduceOp.MAX", "", "a sum above 0 also means that a rank overflowed"
    ),
    EquivalentAnswer(
        "overflow += 1", "overflow += 2", "any number above 0 says that it overflowed"
    ),
    EquivalentAnswer(
        "growth_interval=2000",
        "growth_interval=2001",
        "a default of the stub, which would take 2,000 steps to test",
    ),
    EquivalentAnswer(
        "gradient /= self.scale", "gradient *= 1 / self.scale", "exact: a power of two"
    ),
)


def reference(case: Case, inputs: Any, mistake: str = "") -> list[Plain]:
    ranks = [Rank(given["weights"], case, mistake) for given in inputs]
    for step in range(case.params["steps"]):
        without = case.params["plan"].get(step)
        for index, (rank, given) in enumerate(zip(ranks, inputs, strict=True)):
            rank.backward(given["x"][step], has_gradients=without != (index, "none"))
        bad = [rank.overflows() for rank in ranks]
        least = {
            "only if all": len(bad),
            "half": len(bad) / 2,
            "more than half": len(bad) / 2 + 0.5,
        }
        agreed = sum(bad) >= least.get(mistake, 1)
        for rank, own in zip(ranks, bad, strict=True):
            rank.step(own, agreed, case.params["growth_interval"])
    return [output_of(rank.steps, rank.scales, rank.weights) for rank in ranks]


class Rank:
    def __init__(self, weights: Tensor, case: Case, mistake: str) -> None:
        self.weights, self.scale, self.mistake = weights.clone(), case.params["scale"], mistake
        self.first_scale = self.scale
        self.rate, self.decay = rate_and_decay(case)
        self.good_steps, self.steps, self.scales = 0, list[int](), list[Plain]()

    def backward(self, x: Tensor, has_gradients: bool) -> None:
        leaf = self.weights.clone().requires_grad_()
        self.used = self.first_scale if self.mistake == "first scale" else self.scale
        (self.gradient,) = torch.autograd.grad(loss_of(leaf, x) * self.used, leaf)
        self.has_gradients = has_gradients
        if not has_gradients:
            self.gradient = torch.zeros_like(self.gradient)

    def overflows(self) -> bool:
        tensors = self.gradient.chunk(TENSORS)
        seen = {"first": tensors[0], "last": tensors[-1]}.get(self.mistake, self.gradient)
        kinds = {"no inf": "n", "no nan": "+-", "no -inf": "+n", "only +inf": "+"}
        found = {"+": seen.isposinf(), "-": seen.isneginf(), "n": seen.isnan()}
        return any(bool(found[kind].any()) for kind in kinds.get(self.mistake, "+-n"))

    def step(self, own: bool, anywhere: bool, growth_interval: int) -> None:
        before, overflow = self.used, own if self.mistake == "only its own" else anywhere
        self.scale = self.next_scale(overflow, growth_interval)
        divisors = {"never unscales": 1.0, "unscales twice": before**2}
        divisors["unscales by the new scale"] = self.scale
        skips = {"skips alone": own, "steps anyway": False}.get(self.mistake, overflow)
        if not skips and self.has_gradients:
            gradient = self.gradient / divisors.get(self.mistake, before)
            if self.mistake == "unscales in fp16":
                gradient = gradient.half().float()
            shrinks = 1 / before if self.mistake == "divides lr" else 1.0
            self.weights -= self.rate * (gradient + shrinks * self.decay * self.weights)
        self.steps.append(int(not skips))
        self.scales.append(self.scale)

    def next_scale(self, overflow: bool, growth_interval: int) -> float:
        mistake = self.mistake
        if overflow:
            self.good_steps *= mistake == "keeps counting past an overflow"
            halved = self.scale // 2 if mistake == "whole" else self.scale / 2
            return self.scale if mistake == "never halves" else halved
        self.good_steps += 1
        interval = 1 if mistake == "grows in every step" else growth_interval
        if self.good_steps < interval + (mistake == "grows one step late"):
            return self.scale
        self.good_steps *= mistake == "keeps counting past a growth"
        doubled = min(self.scale * 2, 2.0**24) if mistake == "caps" else self.scale * 2
        return self.scale if mistake == "never grows" else doubled


MESSAGES = {
    "only its own": "looks at its own gradients only: when one rank overflows, all ranks skip and "
    "halve; all_reduce one number, and wait for it",
    "skips alone": "steps although another rank overflowed: when one overflows, all must skip",
    "no nan": "checks for inf and misses nan: inf - inf is nan, use torch.isfinite",
    "no inf": "checks for nan and misses inf: use torch.isfinite",
    "no -inf": "checks for inf and nan and misses -inf: use torch.isfinite",
    "only +inf": "checks for inf and misses nan and -inf: use torch.isfinite",
    "first": "looks only at the first tensor's gradients: any may overflow",
    "last": "looks only at the last tensor's gradients: any may overflow",
    "only if all": "acts only if all ranks overflow: one is enough, so combine the numbers with "
    "ReduceOp.MAX",
    "half": "acts only if half of the ranks or more overflow: one is enough, so combine the "
    "numbers with ReduceOp.MAX",
    "steps anyway": "halves the scale but steps anyway: now inf or nan is in the weights",
    "never unscales": "steps with scaled gradients: divide them in place first, grad.div_(scale)",
    "unscales in fp16": "divides the gradients by the scale in fp16, where small ones become 0: "
    "they are fp32, divide them as they are",
    "divides lr": "divides lr by the scale, not the gradients: weight decay shrinks as well then",
    "first scale": "multiplies the loss by a scale that never changes: use the current self.scale",
    "unscales twice": "divides the gradients by the scale twice",
    "unscales by the new scale": "divides by the next step's scale: unscale before it grows",
    "grows in every step": "grows after every good step: wait for growth_interval of them in a row",
    "keeps counting past an overflow": "keeps counting past an overflow: reset the number of good "
    "steps to 0",
    "keeps counting past a growth": "keeps counting after the scale has grown: reset the number of "
    "good steps to 0",
    "grows one step late": "grows one step late: double it right after growth_interval good steps",
    "never grows": "keeps the scale after growth_interval good steps in a row: double it then (is "
    "the argument used?)",
    "whole": "rounds the scale to a whole number: it may fall below 1",
    "caps": "caps the scale at 2**24, which is not part of the rule",
    "never halves": "keeps the scale after an overflow: halve it, or it overflows again and again",
}
SAME = {"half": ("half", "more than half")}
MISTAKES = {
    message: tuple(partial(reference, mistake=each) for each in SAME.get(mistake, (mistake,)))
    for mistake, message in MESSAGES.items()
}
