"""Dynamic loss scaling on ranks: real fp16 gradients that overflow, and the rule worked out here.

Each rank has weights of its own, as when the gradients are sharded over ranks: an overflow on one
is seen by no other, until they talk.  The gradient of weight i is x_i/n, worked out in fp16, where
scale·x_i/n may not fit; afterwards it is cast to fp32, as with torch.autocast.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autograder.exercise import Attempt, Budget, Case, Curves, Finding, Plain
from autograder.exercise.compare import equal
from autograder.exercise.kept_back import kept_back
from shardlab.errors import DeadlockError

ELEMENTS = 4096  # a power of two: the mean over them divides without rounding
LEARNING_RATE = 0.5
TOO_LARGE = 60_000.0  # fits fp16 (at most 65,504), and is inf times any scale above ELEMENTS
FLAG_BYTES = 64  # more than any flag needs, and far less than gradients


def scaler_case(
    name: str,
    world_size: int,
    plan: dict[int, tuple[int, str]],
    steps: int = 12,
    scale: float = 2.0**16,
    growth_interval: int = 3,
    hidden: bool = False,
) -> Case:
    """plan: {step: (rank, "inf" or "nan")}, what is planted among its gradients."""
    params = {
        "plan": plan,
        "steps": steps,
        "scale": scale,
        "growth_interval": growth_interval,
    }
    return Case(name, world_size, params, hidden)


def draw_steps(case: Case, rng: np.random.Generator) -> list[Plain]:
    """For each rank its weights [n] fp32, and x [steps, n] in fp16: whole 256ths up to 1."""
    given = []
    for rank in range(case.world_size):
        size = (case.params["steps"], ELEMENTS)
        x = torch.from_numpy(rng.integers(1, 257, size=size)).half() / 256
        for step, (where, what) in case.params["plan"].items():
            if where == rank:
                x[step, int(rng.integers(ELEMENTS))] = math.nan if what == "nan" else TOO_LARGE
        weights = torch.from_numpy(rng.uniform(-1, 1, ELEMENTS)).float()
        given.append({"weights": weights, "x": x})
    return given


def loss_of(weights: Tensor, x: Tensor) -> Tensor:
    """The mean of weights·x, multiplied in fp16: weights [n] fp32, x [n] fp16  ->  [] fp32"""
    return (weights.half() * x).float().mean()


def drive_scaler(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    weights = nn.Parameter(given["weights"].clone())
    without_gradient = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weights, without_gradient], lr=LEARNING_RATE)
    stepped: list[int] = []
    optimizer.register_step_post_hook(lambda *_: stepped.append(1))
    scaler = subject(scale=case.params["scale"], growth_interval=case.params["growth_interval"])
    scales, steps = [], []
    for x in given["x"]:
        optimizer.zero_grad()
        scaler.scale_loss(loss_of(weights, x)).backward()
        stepped.clear()
        scaler.step(optimizer)
        steps.append(len(stepped))
        scales.append(as_number(scaler.scale))
    return {"optimizer steps": steps, "scale": scales, "weights": weights.detach()}


def as_number(scale: Any) -> Plain:
    return scale.item() if isinstance(scale, Tensor) and scale.numel() == 1 else scale


# ---- the rule, and what each mistake makes of it -------------------------------------------------


@kept_back(lambda case, inputs: [(case, inputs, mistake) for mistake in MISTAKES])
def follow(case: Case, inputs: Any, mistake: str = "") -> list[dict[str, Any]]:
    """What every rank ends with; all of them, one after the other, in this process."""
    ranks = [Rank(given["weights"], case.params["scale"]) for given in inputs]
    for step in range(case.params["steps"]):
        gradients = [
            scaled_gradient(rank.weights, given["x"][step], rank.scale)
            for rank, given in zip(ranks, inputs, strict=True)
        ]
        bad = [overflowed(gradient, mistake) for gradient in gradients]
        for rank, gradient, own in zip(ranks, gradients, bad, strict=True):
            anywhere = own if mistake == "only its own" else any(bad)
            rank.step(gradient, anywhere, own, case.params["growth_interval"], mistake)
    return [
        {"optimizer steps": rank.steps, "scale": rank.scales, "weights": rank.weights}
        for rank in ranks
    ]


def scaled_gradient(weights: Tensor, x: Tensor, scale: float) -> Tensor:
    leaf = weights.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(leaf, x) * scale, leaf)
    return gradient


def overflowed(gradient: Tensor, mistake: str) -> bool:
    if mistake == "no nan":
        return bool(gradient.isinf().any())
    if mistake == "no inf":
        return bool(gradient.isnan().any())
    return not bool(gradient.isfinite().all())


class Rank:
    def __init__(self, weights: Tensor, scale: float) -> None:
        self.weights = weights.clone()
        self.scale = scale
        self.good_steps = 0
        self.steps: list[int] = []
        self.scales: list[float] = []

    def step(
        self, gradient: Tensor, overflow: bool, own: bool, growth_interval: int, mistake: str
    ) -> None:
        skip = own if mistake == "skips alone" else overflow
        if not skip or mistake == "steps all the same":
            after = self.after(overflow, growth_interval, "")[0]
            divisor = {"never unscales": 1.0, "unscales twice": self.scale**2}.get(
                mistake, after if mistake == "unscales by the new scale" else self.scale
            )
            self.weights -= LEARNING_RATE * gradient / divisor
        self.steps.append(int(not skip or mistake == "steps all the same"))
        self.scale, self.good_steps = self.after(overflow, growth_interval, mistake)
        self.scales.append(self.scale)

    def after(self, overflow: bool, growth_interval: int, mistake: str) -> tuple[float, int]:
        """(scale, good steps in a row) that the next step starts with."""
        if overflow:
            kept = self.good_steps if mistake == "keeps counting past an overflow" else 0
            return (self.scale if mistake == "never halves" else self.scale / 2), kept
        good_steps = self.good_steps + 1
        interval = 1 if mistake == "grows in every step" else growth_interval
        late = mistake == "grows one step late"
        if good_steps < interval + late or mistake == "never grows":
            return self.scale, good_steps
        return self.scale * 2, (good_steps if mistake == "keeps counting past a growth" else 0)


def expect_scaler(case: Case, inputs: Any) -> list[Plain]:
    return follow(case, inputs)


ONE_FLAG = Budget(
    "sends ≤ 1 KiB per rank and step",
    limit=lambda case: [1024 * case.params["steps"]] * case.world_size,
    used=lambda run: run.traffic.sent_by_rank.tolist(),
)


def scales_by_step(attempt: Attempt) -> Curves:
    def logs(told: Plain) -> list[float]:
        return [math.log2(scale) if scale > 0 else math.nan for scale in told["scale"]]

    got = {f"rank {rank}": logs(output) for rank, output in enumerate(attempt.outputs)}
    return Curves("log₂ of the scale", got, expected=logs(attempt.expected[0]))


# ---- mistakes by their names ---------------------------------------------------------------------

MISTAKES: dict[str, str] = {  # in this order: the first whose outcome is the student's
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


def broken_rule(attempt: Attempt) -> Finding | None:
    """The mistake that, followed on all ranks, ends where the student's code did."""
    if attempt.error:
        return None
    if equal(attempt.expected, list(attempt.outputs)):
        return None
    for name, mistake in MISTAKES.items():
        outcome = follow(attempt.case, attempt.inputs, name)
        if equal(outcome, list(attempt.outputs)):
            rank = first_difference(attempt.expected, outcome)
            wanted, got = (side[rank]["scale"] for side in (attempt.expected, outcome))
            evidence = f"scale after each step: {in_words(got)}" if got != wanted else ""
            return Finding(f"rank {rank}", mistake, evidence)
    return None


def first_difference(expected: Any, outcome: Any) -> int:
    pairs = enumerate(zip(expected, outcome, strict=True))
    return next(rank for rank, (wanted, got) in pairs if not equal(wanted, got))


def in_words(scales: list[float]) -> str:
    return ", ".join(f"{scale:g}" for scale in scales)


def talks_only_in_need(attempt: Attempt) -> Finding | None:
    if not isinstance(attempt.error, DeadlockError) or attempt.run is None:
        return None
    calls = [call.rank for call in attempt.run.calls if call.op == "all_reduce"]
    by_rank = [calls.count(rank) for rank in range(attempt.case.world_size)]
    if max(by_rank) == min(by_rank):
        return None
    return Finding(
        "the ranks",
        "do not all call all_reduce: one that did not overflow cannot know who did, so every rank "
        "calls it in every step",
        f"calls by rank: {by_rank}",
        anyone="the ranks",
    )


def sends_gradients(attempt: Attempt) -> Finding | None:
    for call in attempt.run.calls if attempt.run else []:
        if call.op == "all_reduce" and call.bytes > FLAG_BYTES:
            return Finding(
                f"rank {call.rank}",
                "all-reduces its gradients: whether it overflowed is one number",
                f"{call.bytes:,} bytes",
            )
    return None
