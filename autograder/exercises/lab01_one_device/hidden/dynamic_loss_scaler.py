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
    "two tensors overflow at once": "1 rank, overflows twice",
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
    enough = {"all ranks": len(ranks), "half of the ranks": len(ranks) / 2}.get(mistake, 1)
    for step in range(case.params["steps"]):
        without = case.params["plan"].get(step)
        for index, (rank, given) in enumerate(zip(ranks, inputs, strict=True)):
            rank.backward(given["x"][step], has_gradients=without != (index, "none"))
        bad = [rank.overflows() for rank in ranks]
        anywhere = sum(bad) == 1 if mistake == "one rank" else sum(bad) >= enough
        times = {"by rank": sum(bad), "by tensor": max(rank.bad_tensors() for rank in ranks)}
        for rank, own in zip(ranks, bad, strict=True):
            rank.step(own, anywhere, case.params["growth_interval"], times.get(mistake, 1))
    return [output_of(rank.steps, rank.weights) for rank in ranks]


class Rank:
    def __init__(self, weights: Tensor, case: Case, mistake: str) -> None:
        self.weights, self.scale, self.mistake = weights.clone(), case.params["scale"], mistake
        self.first_scale = self.scale
        self.rate, self.decay = rate_and_decay(case)
        self.good_steps, self.steps = 0, list[tuple[Plain, int]]()

    def backward(self, x: Tensor, has_gradients: bool) -> None:
        leaf = self.weights.clone().requires_grad_()
        self.used = self.first_scale if self.mistake == "first scale" else self.scale
        (self.gradient,) = torch.autograd.grad(loss_of(leaf, x) * self.used, leaf)
        self.has_gradients = has_gradients
        if not has_gradients:
            self.gradient = torch.zeros_like(self.gradient)

    def overflows(self) -> bool:
        tensors = self.gradient.chunk(TENSORS)
        parts = {"first": tensors[0], "last": tensors[-1], "group": torch.cat(tensors[:2])}
        seen = parts.get(self.mistake, self.gradient)
        kinds = {"no inf": "n", "no nan": "+-", "no -inf": "+n", "only +inf": "+"}
        nans = tensors[0] if self.mistake == "first nan" else seen
        found = {"+": seen.isposinf(), "-": seen.isneginf(), "n": nans.isnan()}
        return any(bool(found[kind].any()) for kind in kinds.get(self.mistake, "+-n"))

    def bad_tensors(self) -> int:
        return sum(not tensor.isfinite().all() for tensor in self.gradient.chunk(TENSORS))

    def step(self, own: bool, anywhere: bool, growth_interval: int, times_halved: int) -> None:
        overflow = own if self.mistake == "only its own" else anywhere
        skips = own if self.mistake == "skips alone" else overflow
        if not skips and self.has_gradients:
            times = {"never unscales": 0, "unscales twice": 2}.get(self.mistake, 1)
            if self.mistake == "grows first" and self.good_steps + 1 == growth_interval:
                self.used *= 2
            gradient = self.gradient / self.used**times
            if self.mistake == "group":
                gradient[len(gradient) // 2 :] *= self.used
            if self.mistake == "unscales in fp16":
                gradient = gradient.half().float()
            shrinks = 1 / self.used if self.mistake == "divides lr" else 1.0
            self.weights -= self.rate * (gradient + shrinks * self.decay * self.weights)
        if overflow:
            self.scale /= 2**times_halved
            self.good_steps *= self.mistake == "counts on after a skip"
        else:
            self.good_steps += 1
            if self.good_steps == growth_interval + (self.mistake == "grows late"):
                self.scale *= 2
                self.good_steps = 0
        self.steps.append((self.scale, int(not skips)))


# "all ranks" comes before what it equals in cases without nan, or without overflows in the first
# tensor: on one rank it is right.
BY_MESSAGE = {
    "looks at its own gradients only: when one rank overflows, all ranks skip and halve; "
    "all_reduce one number, and wait for it": ("only its own",),
    "steps although another rank overflowed: when one overflows, all must skip": ("skips alone",),
    "acts only if several ranks overflow: one is enough, so combine the numbers with "
    "ReduceOp.MAX": ("all ranks", "half of the ranks"),
    "misses steps in which several ranks overflow: a sum of the numbers is then above 1, so "
    "use ReduceOp.MAX, or > 0": ("one rank",),
    "misses nan: comparisons with nan are False, and max() skips it, so use torch.isfinite": (
        "no nan",
        "first nan",
    ),
    "misses inf or -inf: use torch.isfinite": ("no inf", "no -inf", "only +inf"),
    "looks only at one tensor's gradients: any may overflow": ("first", "last"),
    "visits the first parameter group only: an optimizer may have several": ("group",),
    "halves the scale more than once in a step: once, however many tensors or ranks overflow": (
        "by tensor",
        "by rank",
    ),
    "does not reset its count when it skips a step: count only steps in a row": (
        "counts on after a skip",
    ),
    "grows one step late: growth_interval steps in a row are enough": ("grows late",),
    "doubles the scale before it divides: these gradients were computed with the old scale": (
        "grows first",
    ),
    "does not divide the gradients by the scale once before it steps: in place, with "
    "grad.div_(scale)": ("never unscales", "unscales twice"),
    "divides the gradients by the scale in fp16, where small ones become 0: they are fp32, divide "
    "them as they are": ("unscales in fp16",),
    "divides lr by the scale, not the gradients: weight decay shrinks as well then": (
        "divides lr",
    ),
    "multiplies the loss by a scale that never changes: use the current self.scale": (
        "first scale",
    ),
}
MISTAKES = {
    message: tuple(partial(reference, mistake=each) for each in mistakes)
    for message, mistakes in BY_MESSAGE.items()
}
