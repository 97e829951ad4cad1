"""Cross-entropy where each rank has the logits of its part of the vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from autograder.exercise import Budget, Case, Limit, OnRanks, Plain, sent_bytes
from autograder.exercise.signs import never_waited, raises
from autograder.exercises.common import FLOAT_BYTES, normal
from autograder.exercises.lab08_tensor_parallel import shared
from autograder.exercises.lab08_tensor_parallel.stand_ins import StandInSumOverRanks
from autograder.guest.on_rank import with_functions_replaced

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
    logits = normal(rng, tokens, vocabulary, scale=scale) + shift
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
    gradient = torch.zeros_like(logits) if logits.grad is None else logits.grad
    return {"loss": value, "logits.grad": gradient, "changed arguments": changed}


def three_numbers_bytes(case: Case) -> int:
    """Per token: the largest logit, the sum of exponentials, the target's logit."""
    return 3 * FLOAT_BYTES * case.params["tokens"]


def half_of_its_logits(case: Case) -> Limit | None:
    """For the bytes that the operating system counts, gloo's own messages included.  At least a
    number for each token: what a rank's exponentials sum to."""
    least = FLOAT_BYTES * case.params["tokens"]
    elements = case.params["tokens"] * case.params["vocabulary"] // case.world_size
    most = FLOAT_BYTES * elements / 2
    return Limit(most, least) if FLOAT_BYTES * elements >= WIRE_FROM_BYTES else None


looks_up_other_words = raises(
    r"index -?\d+ is out of bounds|Target \d+ is out of bounds",
    "looks up a word that another rank has: its own words start at rank · V/N, and targets outside "
    "its part add 0",
    quoted=True,
)

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
    rules=(never_waited,),
    signs=(looks_up_other_words,),
)
