"""Cross-entropy where each rank has the logits of its part of the vocabulary."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autograder.exercise import (
    Attempt,
    Budget,
    Case,
    Finding,
    Limit,
    OnRanks,
    Plain,
    sent_bytes,
)
from autograder.exercise.signs import MistakeText, never_waited, on_each_rank
from autograder.exercises.lab07_tensor_parallel import shared
from autograder.exercises.lab07_tensor_parallel.stand_ins import StandInSumOverRanks
from autograder.guest.on_rank import with_functions_replaced
from shardlab.errors import RankError

WIRE_FROM_BYTES = 2**16  # below, gloo's own messages are as large as logits


def loss_case(
    world_size: int,
    tokens: int,
    vocabulary: int,
    scale: float = 1.0,
    name: str = "",
    owners: int | None = None,
    shift: float = 0.0,
) -> Case:
    """``owners``: ranks whose words are the targets, from the last one backward; default: all.
    ``shift``: the mean of the logits."""
    name = name or f"{world_size} ranks, {tokens} tokens, {vocabulary} words"
    sizes = {"tokens": tokens, "vocabulary": vocabulary, "scale": scale}
    return Case(name, world_size, {**sizes, "owners": owners or world_size, "shift": shift})


def draw(case: Case, rng: np.random.Generator) -> list[Plain]:
    """For each rank its columns of the logits, and all targets: of each part the first word, then
    the last one, then any."""
    tokens, vocabulary, scale, owners, shift = case.params.values()
    logits = shared.normal(rng, tokens, vocabulary, scale=scale) + shift
    part = vocabulary // case.world_size
    owner, turn = case.world_size - 1 - np.arange(tokens) % owners, np.arange(tokens) // owners
    inside = np.where(turn == 0, 0, np.where(turn == 1, part - 1, rng.integers(0, part, tokens)))
    targets = torch.from_numpy(rng.permutation(owner * part + inside))
    loss_grad = torch.tensor(rng.uniform(2, 3), dtype=torch.float32)
    return [
        {"logits": own.clone(), "targets": targets, "loss.grad": loss_grad}
        for own in logits.chunk(case.world_size, dim=1)
    ]


def drive(subject: Any, given: Any, case: Case) -> Plain:
    subject = with_functions_replaced(subject, SumOverRanks=StandInSumOverRanks)
    logits, targets = given["logits"].clone().requires_grad_(), given["targets"].clone()
    loss = subject(logits, targets)
    if isinstance(loss, Tensor) and loss.ndim == 0 and loss.requires_grad:
        loss.backward(given["loss.grad"])
    value = loss.detach() if isinstance(loss, Tensor) else loss
    changed = not (torch.equal(logits, given["logits"]) and torch.equal(targets, given["targets"]))
    return {"loss": value, "logits.grad": logits.grad, "changed": changed}


# ---- budgets ------------------------------------------------------------------------------------


def three_numbers_bytes(case: Case) -> int:
    """Per token: the largest logit, the sum of exponentials, the target's logit."""
    return 3 * shared.FLOAT_BYTES * case.params["tokens"]


def part_bytes(case: Case) -> int:
    """Bytes of a rank's logits."""
    elements: int = case.params["tokens"] * case.params["vocabulary"]
    return shared.FLOAT_BYTES * elements // case.world_size


def half_of_its_logits(case: Case) -> Limit | None:
    """For the bytes that the operating system counts, gloo's own messages included."""
    size = part_bytes(case)
    return Limit(size / 2) if size >= WIRE_FROM_BYTES else None


# ---- signs --------------------------------------------------------------------------------------


def looks_up_other_words(attempt: Attempt) -> Finding | None:
    """torch's errors for an index outside of the rank's V/N words."""
    error, part = attempt.error, attempt.case.params["vocabulary"] // attempt.case.world_size
    pattern = (
        rf"(index -?\d+ is out of bounds for .* with size {part}$|Target \d+ is out of bounds)"
    )
    if not isinstance(error, RankError) or not re.search(pattern, error.message):
        return None
    mistake = (
        "looks up a word that another rank has: its own words start at rank · V/N, and targets "
        "outside its part add 0"
    )
    return Finding(f"rank {error.rank}", mistake, f"{error.message}, {error.source}")


def large_tensors(attempt: Attempt) -> Finding | None:
    """A collective gets as many bytes as a rank has logits."""
    part = part_bytes(attempt.case)
    for call in attempt.run.calls if attempt.run and not attempt.error else []:
        if call.bytes >= part > three_numbers_bytes(attempt.case):
            mistake = (
                "passes a tensor as large as its logits to a collective: three numbers per token "
                "are enough"
            )
            return Finding(f"rank {call.rank}", mistake, f"{call.op}, {call.source}")
    return None


@on_each_rank
def not_one_tensor(output: Any, given: Any) -> MistakeText:
    loss = output["loss"]
    if not isinstance(loss, Tensor):
        return "should return the loss as a tensor, for backward"
    if loss.shape == given["targets"].shape:
        return "returns one loss per token: return their mean"
    return None


@on_each_rank
def changes_its_arguments(output: Any) -> MistakeText:
    return "changes its arguments: the caller may use them again" if output["changed"] else None


EXERCISE = OnRanks(
    points=5,
    cases=(
        loss_case(2, 5, 8),
        loss_case(4, 6, 16, scale=200, name="4 ranks, logits of several hundred"),
        loss_case(4, 8, 512, name="4 ranks, all logits near -300", shift=-300),
    ),
    inputs=draw,
    drive=drive,
    tolerance=shared.TOLERANCE,
    compares_calls=False,
    budgets=(
        shared.passed_to_collectives("≤ 12 bytes per token", three_numbers_bytes),
        Budget("sends less than half of its logits' bytes", sent_bytes, half_of_its_logits),
    ),
    signs=(
        looks_up_other_words,
        large_tensors,
        shared.other_dtype,
        not_one_tensor,
        changes_its_arguments,
    ),
    rules=(never_waited,),
)
