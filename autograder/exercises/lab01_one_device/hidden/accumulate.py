"""The reference, one micro-batch at a time; a test compares it with the whole batch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab01_one_device.accumulate import (
    batches_case,
    model_and_optimizer,
    output_of,
)
from autograder.exercises.lab01_one_device.hidden.shared import NOT_SHARDED
from shardlab.models import IGNORE

# (counted targets, all targets, sequences, targets above 0), each by micro-batch  ->  the divisors
Divisors = Callable[[Tensor, Tensor, Tensor, Tensor], Any]

SIZES = [(60, 30), (90, 14), (128, 32), (110, 28), (70, 7), (96, 32), (124, 30)]
SHARES = [0.9, 0.2, 1.0, 0.7, 0.5, 0.1, 0.8]
CASES = (
    batches_case("sizes and shares differ", SIZES, SHARES),
    batches_case("nothing counts in the first", [(3, 24)] * 3, [0.0, 0.5, 1.0]),
)
BOUNDARIES = NOT_SHARDED | {
    "one rank": "12 equal micro-batches",
    "one micro-batch": "a micro-batch alone",
    "a parameter without a gradient": "12 equal micro-batches",
    "several parameter groups": "12 equal micro-batches",
    "no target counts in a sequence": "some targets are -100, in one all",
    "no target counts": "some targets are -100, in one all",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer("+= part.item()", "+= part.detach()", "a tensor with one number"),
    EquivalentAnswer(", ignore_index=-100", "", "torch's default"),
    EquivalentAnswer("optimizer.zero_grad()", "model.zero_grad()", "it has the same parameters"),
)


def reference(
    case: Case,
    inputs: Any,
    divisors: Divisors = lambda counted, *_: counted.sum(),
    first: int = 0,
    clears: str = "before",
    divides_first_group: bool = False,
    clips: bool = False,
) -> Plain:
    """Two steps. ``divisors``: for each micro-batch's sum of losses, or one for all.

    ``clears`` the gradients "before" the step, "after" it or "never", or to "zeros" before it.
    """
    model, optimizer = model_and_optimizer(inputs[0])
    losses: list[Plain] = []
    for batches in inputs[0]["steps"]:
        if clears in ("before", "zeros"):
            optimizer.zero_grad(set_to_none=clears == "before")
        sizes = [
            ((each != IGNORE).sum(), each.numel(), len(each), (each > 0).sum())
            for _, each in batches
        ]
        by_batch = torch.as_tensor(divisors(*torch.tensor(sizes).T)).expand(len(batches))
        losses.append(0.0)
        for (tokens, targets), divisor in list(zip(batches, by_batch, strict=True))[first:]:
            logits = model(tokens).flatten(0, 1)
            total = functional.cross_entropy(
                logits, targets.flatten(), ignore_index=IGNORE, reduction="sum"
            )
            part = total / divisor
            part.backward()
            losses[-1] += part.item()
        if divides_first_group:
            for parameter in optimizer.param_groups[0]["params"]:
                parameter.grad /= sum(counted for counted, *_ in sizes)
        if clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if clears == "after":
            optimizer.zero_grad()
    return output_of(len(losses), model, losses) | {
        "training mode": True,
        "micro-batches unchanged": True,
        "loss is in the graph": False,
    }


def wrong(*divisors: Divisors, **changes: Any) -> Callable[..., Plain]:
    return lambda *given: {"weights": reference(*given, *divisors, **changes)["weights"]}


BY_TOKENS = "divide the sum of the losses by the number of counted tokens in all micro-batches"
MISTAKES = {
    f"takes the mean of means, so a token in a short micro-batch weighs more: {BY_TOKENS}": (
        wrong(lambda counted, *_: counted * len(counted))
    ),
    f"divides by a wrong number, or never: {BY_TOKENS}": (
        wrong(lambda counted, *_: counted),
        wrong(lambda counted, *_: len(counted)),
        wrong(lambda *_: 1),
        wrong(lambda counted, _, sequences, __: counted * sequences.sum() / sequences),
        wrong(lambda counted, *_: counted[0] * len(counted)),
    ),
    "counts targets of -100 as tokens: they are not in the sum, so leave them out of the count": (
        wrong(lambda _, targets, *__: targets.sum()),
        wrong(lambda counted, targets, *_: counted * targets.sum() / targets),
    ),
    "leaves targets of 0 out of the count: token 0 counts, only -100 does not": wrong(
        lambda *sizes: sizes[3].sum()
    ),
    "clips the gradients: the spec does not": wrong(clips=True),
    "forgets zero_grad: the previous step's gradients are still there": wrong(clears="never"),
    "leaves gradients of zeros where no micro-batch gives one, so the optimizer still decays such "
    "a weight: zero_grad() sets them to None": wrong(clears="zeros"),
    "divides the gradients of the first parameter group only: an optimizer may have several": wrong(
        lambda *_: 1, divides_first_group=True
    ),
    "clears the gradients after the step only: old ones may be there before the first": (
        wrong(clears="after")
    ),
    "steps with the last micro-batch's gradients only: call backward for each, and zero_grad once, "
    "before the first": wrong(first=-1),
}
