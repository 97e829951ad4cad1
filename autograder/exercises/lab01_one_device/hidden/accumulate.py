"""The oracle is the big batch itself: all sequences, padded to one length with targets that do not
count, in one forward and one backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EqualAnswer
from autograder.exercises.lab01_one_device.accumulate import Batch, batches_case, begin, output_of
from autograder.exercises.lab01_one_device.hidden.shared import ALONE
from shardlab.models import GPT, IGNORE

SIZES = [(60, 30), (90, 14), (128, 32), (70, 7), (96, 32)]
CASES = (
    batches_case("a micro-batch alone", [(6, 16)], [0.5]),
    batches_case("sizes and shares differ", SIZES, [0.9, 0.2, 1.0, 0.5, 0.1]),
    batches_case("nothing counts in one", [(3, 24)] * 3, [0.5, 0.0, 1.0]),
)
BOUNDARIES = ALONE | {
    "one rank": "four alike",
    "one micro-batch": "a micro-batch alone",
    "no target counts": "nothing counts in one",
    "no micro-batch": "not asked: there is no step to take",
}
EQUAL_ANSWERS = (
    EqualAnswer("+= part.item()", "+= part.detach()", "a tensor that holds one number"),
    EqualAnswer("optimizer.zero_grad()", "model.zero_grad()", "it has the same parameters"),
)


def train(
    given: Plain, backward: Callable[[GPT, list[Batch]], Tensor], clears: bool = True
) -> dict[str, Plain]:
    """Two steps; ``backward`` fills the gradients of one and returns its loss."""
    model, optimizer = begin(given)
    losses: list[Plain] = []
    for batches in given["steps"]:
        if clears:
            optimizer.zero_grad()
        losses.append(float(backward(model, batches).detach()))
        optimizer.step()
    return output_of(len(losses), model, losses)


def reference(case: Case, inputs: Any) -> Plain:
    return train(inputs[0], in_one_batch)


def in_one_batch(model: GPT, batches: list[Batch]) -> Tensor:
    loss: Tensor = model(*one_batch(batches))
    loss.backward()
    return loss


def one_batch(batches: list[Batch]) -> Batch:
    """All sequences, as long as the longest: what is added comes last and does not count."""
    tokens = [row for tokens, _ in batches for row in tokens]
    targets = [row for _, targets in batches for row in targets]
    return (
        pad_sequence(tokens, batch_first=True),
        pad_sequence(targets, batch_first=True, padding_value=IGNORE),
    )


# ---- mistakes -----------------------------------------------------------------------------------


class Count(NamedTuple):
    tokens: int  # whose targets count
    targets: int  # with those that do not
    sequences: int
    batches: int


def count(batches: list[Batch]) -> Count:
    targets = [targets for _, targets in batches]
    counted = sum(int((each != IGNORE).sum()) for each in targets)
    return Count(counted, sum(each.numel() for each in targets), sum(map(len, targets)), len(batches))


def divided_by(
    divisor: Callable[[Count, Count], float], first: int = 0, clears: bool = True) -> Callable[..., Plain]:
    """The sum of each micro-batch's losses over ``divisor``, of those from ``first`` on."""

    def backward(model: GPT, batches: list[Batch]) -> Tensor:
        loss = torch.zeros(())
        for tokens, targets in batches[first:]:
            logits = model(tokens).flatten(0, 1)
            total = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE, reduction="sum")
            part = total / divisor(count([(tokens, targets)]), count(batches))
            part.backward()
            loss += part.detach()
        return loss

    def outputs(case: Case, inputs: Any) -> Plain:
        found = train(inputs[0], backward, clears)
        return {"some weights": found["some weights"]}

    return outputs


def steps(of_a_call: Callable[[list[Batch]], int]) -> Callable[..., Plain]:
    return lambda case, inputs: {"optimizer steps": sum(map(of_a_call, inputs[0]["steps"]))}


BY_TOKENS = "divide the sum over all counted tokens by their number in all micro-batches together"
MISTAKES = {
    "steps in every micro-batch: one optimizer step comes after all of them": steps(len),
    "never calls optimizer.step()": steps(lambda batches: 0),
    f"takes the mean of means, so a token weighs more in a short one: {BY_TOKENS}": (
        divided_by(lambda one, every: one.tokens * every.batches)
    ),
    f"adds up the means of the micro-batches: {BY_TOKENS}": (
        divided_by(lambda one, every: one.tokens)
    ),
    f"divides by the number of micro-batches only: {BY_TOKENS}": (
        divided_by(lambda one, every: every.batches)
    ),
    f"never divides the sum of the losses: {BY_TOKENS}": divided_by(lambda one, every: 1),
    "counts targets of -100 as tokens: they are in no sum, so they belong in no count": (
        divided_by(lambda one, every: every.targets),
        divided_by(lambda one, every: one.tokens * every.targets / one.targets),
    ),
    f"weighs by sequences, and they differ in length: {BY_TOKENS}": (
        divided_by(lambda one, every: one.tokens * every.sequences / one.sequences)
    ),
    "forgets zero_grad: the gradients of the step before are still there": (
        divided_by(lambda one, every: every.tokens, clears=False)
    ),
    "clears the gradients before each micro-batch: only the last one's are left for the step": (
        divided_by(lambda one, every: every.tokens, first=-1)
    ),
}
