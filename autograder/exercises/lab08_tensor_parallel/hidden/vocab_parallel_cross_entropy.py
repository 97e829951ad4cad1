from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab08_tensor_parallel.hidden import shared
from autograder.exercises.lab08_tensor_parallel.vocab_parallel_cross_entropy import loss_case

CASES = (
    loss_case(2, 7, 10, scale=3, name="all targets on one rank", owners=1),
    with_random_delays(loss_case(4, 9, 20, scale=500, name="other ranks, large logits")),
    loss_case(4, 64, 1024),
)
BOUNDARIES = shared.BOUNDARIES | {"divides": "2 ranks, 5 tokens, 8 words"}


def reference(case: Case, inputs: Any) -> list[Plain]:
    logits = torch.cat([given["logits"] for given in inputs], dim=1).requires_grad_()
    loss = torch.nn.functional.cross_entropy(logits, inputs[0]["targets"])
    (gradient,) = torch.autograd.grad(loss, [logits], inputs[0]["loss.grad"])
    parts = gradient.chunk(case.world_size, dim=1)
    return [
        {"loss": loss.detach(), "logits.grad": part, "changed arguments": False} for part in parts
    ]


class Parts:
    """What each rank has, by rank: [N, T, …], and what all ranks have together: [T]."""

    def __init__(self, inputs: Any) -> None:
        self.logits = torch.stack([given["logits"] for given in inputs])  # [N, T, V/N]
        n, self.tokens, length = self.logits.shape
        here = inputs[0]["targets"] - length * torch.arange(n)[:, None]
        self.nearest = self.logits.gather(2, here.clamp(0, length - 1)[..., None])[..., 0]
        self.owns = ((here >= 0) & (here < length)).float()
        self.own_top = self.logits.amax(dim=2)
        self.own_total = self.logits.logsumexp(dim=2)
        self.top, self.total = self.own_top.amax(dim=0), self.own_total.logsumexp(dim=0)
        self.found = (self.owns * self.nearest).sum(dim=0)  # the target's logit
        less_own_top = (self.logits - self.own_top[..., None]).exp()
        self.total_less_own_tops = less_own_top.sum(dim=(0, 2)).log()


def subtracting(top_of: Callable[[Parts], Tensor]) -> shared.Outputs:
    """``top_of`` returns what is subtracted from the logits in place of the largest: [T].

    With the gradients that autograd computes: which rows are nan distinguishes infinite losses."""

    def outputs(case: Case, inputs: Any) -> list[Plain]:
        logits = torch.cat([given["logits"] for given in inputs], dim=1).requires_grad_()
        shifted = logits - top_of(Parts(inputs))[:, None]
        found = shifted.gather(1, inputs[0]["targets"][:, None])[:, 0]
        loss = (shifted.exp().sum(dim=1).log() - found).mean()
        (gradient,) = torch.autograd.grad(loss, [logits], inputs[0]["loss.grad"])
        parts = gradient.chunk(case.world_size, dim=1)
        return [{"loss": loss.detach(), "logits.grad": part} for part in parts]

    return outputs


def mean_of(formula: Callable[[Parts], Tensor]) -> shared.Outputs:
    """``formula`` returns the losses per token: [T], the same on all ranks, or [N, T]."""

    def outputs(case: Case, inputs: Any) -> list[Plain]:
        losses = formula(Parts(inputs)).mean(dim=-1)
        return [{"loss": loss} for loss in losses.expand(case.world_size)]

    return outputs


def gradient_through_the_maximum(case: Case, inputs: Any) -> list[Plain]:
    """What a rank's largest logits get in addition, since its own sums depend on them.  Autograd
    saves the result of amax, which the all-reduce replaces; a row without the largest has 0/0."""
    parts = Parts(inputs)
    of_top = parts.owns - (parts.own_total - parts.total).exp()  # [N, T]
    largest = parts.logits == parts.top[:, None]
    by = inputs[0]["loss.grad"] / parts.tokens
    extra = by * of_top[..., None] * largest / largest.sum(dim=2, keepdim=True)
    pairs = zip(reference(case, inputs), extra, strict=True)
    return [{"logits.grad": right["logits.grad"] + more} for right, more in pairs]


MISTAKES = {
    "takes exp without subtracting each token's own largest logit, over all ranks with "
    "op=dist.ReduceOp.MAX: exp overflows to inf, or all of a token's become 0": (
        subtracting(lambda p: torch.zeros(p.tokens)),
        subtracting(lambda p: p.own_top.sum(dim=0)),
        subtracting(lambda p: p.top.max().expand(p.tokens)),
        subtracting(lambda p: p.top.clamp(min=0)),
    ),
    "takes the softmax over its own part of the vocabulary: sum the exponentials over the words of "
    "all ranks": (
        mean_of(lambda p: p.own_total - p.found),
        mean_of(lambda p: (p.logits - p.top[:, None]).exp().sum(dim=2).log() + p.top - p.found),
    ),
    "uses the target's logit only on the rank that has the word: sum it over the ranks, with 0 "
    "from the others": (
        mean_of(lambda p: p.total - p.owns * p.found),
        mean_of(lambda p: p.total - p.top - p.owns * (p.found - p.top)),
    ),
    "adds a logit for targets that are not in its part: put 0 there before the sum": mean_of(
        lambda p: p.total - p.top - (p.nearest - p.top).sum(dim=0)
    ),
    "subtracts the largest logit in the sum but not from the target's logit": mean_of(
        lambda p: p.total - p.top - p.found
    ),
    "subtracts its own largest logit and sums the exponentials: all ranks must subtract the same "
    "one, the largest of all": mean_of(
        lambda p: p.total_less_own_tops - p.found + (p.owns * p.own_top).sum(dim=0)
    ),
    "lets the gradient flow through the maximum: take it of logits.detach()": (
        gradient_through_the_maximum
    ),
    "returns the sum over tokens: return their mean": (
        shared.scaled(reference, lambda case: case.params["tokens"], "loss", "logits.grad")
    ),
    "sums gradients over the ranks: every rank has the same loss, so each logit's gradient comes "
    "out N times too large": (
        shared.scaled(reference, lambda case: case.world_size, "logits.grad")
    ),
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "own = shifted.gather(1, here.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]",
        "own = (shifted * (here[:, None] == torch.arange(logits.shape[1]))).sum(dim=1)",
        "a mask of words selects the target as well",
    ),
)
