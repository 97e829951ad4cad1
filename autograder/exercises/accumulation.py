"""One step from many micro-batches: what it should come to, and what each mistake comes to.

The oracle is the big batch itself: all sequences, padded to one length with targets that do not
count, in one forward and one backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from autograder.exercise import Attempt, Budget, Case, Finding, Plain
from autograder.exercise.compare import equal
from autograder.exercise.kept_back import kept_back
from autograder.exercises.private import BEGUN, ROOM_BYTES, mark, no_more_than_tensors
from shardlab.models import GPT, IGNORE, GPTConfig

CONFIG = GPTConfig(layers=1, heads=2, width=16, context=32, vocabulary=40)
FORWARD = "near the end of a forward pass"
LEARNING_RATE, MOMENTUM = 0.5, 0.9
OLD_GRADIENT = 0.01  # what the first call finds in every `.grad`
TOLERANCE = 1e-6
NEAR_ENOUGH_TO_NAME = 1e-3  # a mistake may leave weights of any size

Batch = tuple[Tensor, Tensor]


def batches_case(
    name: str, shapes: list[tuple[int, int]], counts: list[float], hidden: bool = False
) -> Case:
    """shapes: [sequences, tokens] of each micro-batch; counts: the share of targets that count."""
    return Case(name, 1, {"shapes": shapes, "counts": counts}, hidden)


def draw_batches(case: Case, rng: np.random.Generator) -> list[Plain]:
    """Weights to start from, and micro-batches for two steps."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        weights = GPT(CONFIG).state_dict()
    shares = list(zip(case.params["shapes"], case.params["counts"], strict=True))
    steps = [[draw_batch(rng, shape, share) for shape, share in shares] for _ in range(2)]
    return [{"weights": dict(weights), "steps": steps}]


def draw_batch(rng: np.random.Generator, shape: tuple[int, int], share: float) -> Batch:
    tokens, targets = torch.from_numpy(rng.integers(CONFIG.vocabulary, size=(2, *shape)))
    counting = round(share * targets.numel())
    ignored = rng.permutation(targets.numel())[counting:]
    targets.view(-1)[torch.from_numpy(ignored)] = IGNORE
    return tokens, targets.clone()


def begin(given: Plain) -> tuple[GPT, torch.optim.Optimizer]:
    model = GPT(CONFIG)
    model.load_state_dict(given["weights"])
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, OLD_GRADIENT)
    return model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)


def drive_accumulate(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    model, optimizer = begin(given)
    steps: list[int] = []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    mark(BEGUN)
    model.norm.register_forward_hook(lambda *_: mark(FORWARD))
    losses = [as_number(subject(model, optimizer, batches)) for batches in given["steps"]]
    weights = parameters_to_vector(model.parameters()).detach()
    return {"optimizer steps": len(steps), "weights": weights, "losses": losses}


def as_number(loss: Any) -> Plain:
    one = isinstance(loss, Tensor) and loss.numel() == 1
    return float(loss.detach()) if one else loss


# ---- the oracle ----------------------------------------------------------------------------------


def expect_accumulate(case: Case, inputs: Any) -> list[Plain]:
    given = inputs[0]
    model, optimizer = begin(given)
    losses = []
    for batches in given["steps"]:
        optimizer.zero_grad()
        loss = model(*one_batch(batches))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    weights = parameters_to_vector(model.parameters()).detach()
    return [{"optimizer steps": len(losses), "weights": weights, "losses": losses}]


def one_batch(batches: list[Batch]) -> Batch:
    """All sequences, as long as the longest: what is added comes last and does not count."""
    longest = max(tokens.shape[1] for tokens, _ in batches)
    padded = [
        (
            F.pad(tokens, (0, longest - tokens.shape[1])),
            F.pad(targets, (0, longest - targets.shape[1]), value=IGNORE),
        )
        for tokens, targets in batches
    ]
    tokens, targets = (torch.cat(parts) for parts in zip(*padded, strict=True))
    return tokens, targets


# ---- budget --------------------------------------------------------------------------------------


@cache
def kept_bytes(sequences: int, tokens: int) -> int:
    """What autograd keeps of one micro-batch, counted here."""
    model = GPT(CONFIG)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(torch.zeros(sequences, tokens, dtype=torch.int64))
        F.cross_entropy(logits.flatten(0, 1), torch.zeros(sequences * tokens, dtype=torch.int64))
    return sum(size for at, size in kept.items() if at not in own)


def largest_micro_batch(case: Case) -> list[float]:
    """Half as much again: logits, and what operators work with, come on top of what is kept."""
    return [1.5 * max(kept_bytes(*shape) for shape in case.params["shapes"])]


ONE_AT_A_TIME = Budget(
    "holds the activations of one micro-batch at a time",
    limit=largest_micro_batch,
    used=lambda run: run.memory.peak_of("activations").tolist(),
    heading="activations",
)


def activations_seen(case: Case) -> float | None:
    """Of the largest micro-batch, where a few of them would be much."""
    (most,) = largest_micro_batch(case)
    return most if most > ROOM_BYTES else None


SEEN = no_more_than_tensors(FORWARD, activations_seen)


# ---- mistakes by their names ---------------------------------------------------------------------


@kept_back(lambda case, inputs: [(case, inputs[0], how) for how in MISTAKES])
def trained(case: Case, given: Plain, how: str) -> Tensor:
    """Weights after the same two steps, with one mistake."""
    model, optimizer = begin(given)
    for batches in given["steps"]:
        if how != "keeps old gradients":
            optimizer.zero_grad()
        counted = [int((targets != IGNORE).sum()) for _, targets in batches]
        sizes = [targets.numel() for _, targets in batches]
        for (tokens, targets), count, size in zip(batches, counted, sizes, strict=True):
            if how == "clears in between":
                optimizer.zero_grad()
            logits = model(tokens).flatten(0, 1)
            total = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE, reduction="sum")
            divisor = {
                "mean of means": count * len(batches),
                "sum of means": count,
                "sum": 1,
                "sum over micro-batches": len(batches),
                "counts ignored targets": sum(sizes),
                "weighs by size": count * sum(sizes) / size,
                "weighs by sequences": count * sum(len(t) for t, _ in batches) / len(targets),
            }.get(how, sum(counted))
            (total / divisor).backward()
        optimizer.step()
    return parameters_to_vector(model.parameters()).detach()


BY_TOKENS = "divide the sum over all counted tokens by their number in all micro-batches together"
IGNORED = "counts targets of -100 as tokens: they are in no sum, so they belong in no count"
MISTAKES: dict[str, str] = {
    "mean of means": f"takes the mean of means, so a token weighs more in a short one: {BY_TOKENS}",
    "sum of means": f"adds up the means of the micro-batches: {BY_TOKENS}",
    "sum over micro-batches": f"divides by the number of micro-batches only: {BY_TOKENS}",
    "sum": f"never divides the sum of the losses: {BY_TOKENS}",
    "counts ignored targets": IGNORED,
    "weighs by size": IGNORED,
    "weighs by sequences": f"weighs by sequences, and they differ in length: {BY_TOKENS}",
    "keeps old gradients": "forgets zero_grad: the gradients of the step before are still there",
    "clears in between": "clears the gradients before each micro-batch: only the last one's are "
    "left for the step",
}


def wrong_number_of_steps(attempt: Attempt) -> Finding | None:
    if attempt.error:
        return None
    got, calls = attempt.outputs[0]["optimizer steps"], len(attempt.inputs[0]["steps"])
    who, micro_batches = "accumulate", len(attempt.case.params["shapes"])
    if got == calls * micro_batches and micro_batches > 1:
        mistake = "steps in every micro-batch: one optimizer step comes after all of them"
        return Finding(who, mistake, f"{got} steps in {calls} calls", anyone=who)
    if got == 0:
        return Finding(who, "never calls optimizer.step()", anyone=who)
    return None


def wrongly_weighed(attempt: Attempt) -> Finding | None:
    if attempt.error:
        return None
    got = attempt.outputs[0]["weights"]
    if equal(attempt.expected[0]["weights"], got, TOLERANCE):
        return None
    for how, mistake in MISTAKES.items():
        if equal(trained(attempt.case, attempt.inputs[0], how), got, NEAR_ENOUGH_TO_NAME):
            return Finding("accumulate", mistake, anyone="accumulate")
    return None


def undefined_mean(attempt: Attempt) -> Finding | None:
    """torch's mean over no target is nan, though its gradients are 0."""
    if attempt.error or all(finite(loss) for loss in attempt.outputs[0]["losses"]):
        return None
    mistake = (
        "divides by 0 where no target of a micro-batch counts, as a mean of means does: "
        f"{BY_TOKENS}"
    )
    return Finding("accumulate", mistake, anyone="accumulate")


def finite(loss: Plain) -> bool:
    return not isinstance(loss, float) or math.isfinite(loss)


def wrong_loss(attempt: Attempt) -> Finding | None:
    """The step is right, and what is returned is not."""
    if attempt.error or not equal(
        attempt.expected[0]["weights"], attempt.outputs[0]["weights"], TOLERANCE
    ):
        return None
    wanted, got = attempt.expected[0]["losses"], attempt.outputs[0]["losses"]
    if None in got:
        return Finding("accumulate", "returns nothing: return the mean loss", anyone="accumulate")
    if not equal(wanted, got, TOLERANCE):
        mistake = "steps rightly and returns another loss than the mean over all counted tokens"
        return Finding(
            "accumulate", mistake, f"{got[0]}, expected {wanted[0]:.6f}", anyone="accumulate"
        )
    return None


def holds_them_all(attempt: Attempt) -> Finding | None:
    for spent in attempt.spent:
        if attempt.error is None and spent.ranks_over:
            mistake = (
                "keeps the activations of several micro-batches at a time: call backward for each "
                "before the forward pass of the next"
            )
            evidence = f"{spent.used[0]:,} bytes, at most {spent.limit[0]:,}"
            return Finding("accumulate", mistake, evidence, anyone="accumulate")
    return None
