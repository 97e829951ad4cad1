"""Cross-entropy where each rank has the logits of its part of the vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from autograder.exercise import Attempt, Budget, Case, Finding, Limit, OnRanks, Plain, sent_bytes
from autograder.exercise.signs import MistakeText, on_each_rank, raises
from autograder.exercises.lab07_tensor_parallel import shared
from autograder.exercises.lab07_tensor_parallel.stand_ins import StandInSumOverRanks
from autograder.guest.on_rank import with_functions_replaced

WIRE_FROM_BYTES = 2**16  # below, gloo's own messages are as large as logits


def loss_case(
    world_size: int, tokens: int, vocabulary: int, scale: float = 1.0, name: str = ""
) -> Case:
    name = name or f"{world_size} ranks, {tokens} tokens, {vocabulary} words"
    return Case(name, world_size, {"tokens": tokens, "vocabulary": vocabulary, "scale": scale})


def draw(case: Case, rng: np.random.Generator) -> list[Plain]:
    """For each rank its columns of the logits, and all targets. Each part has some target."""
    tokens, vocabulary, scale = case.params.values()
    logits = shared.normal(rng, tokens, vocabulary, scale=scale)
    part = vocabulary // case.world_size
    words = (np.arange(tokens) % case.world_size) * part + rng.integers(0, part, tokens)
    targets = torch.from_numpy(rng.permutation(words))
    return [
        {"logits": own.clone(), "targets": targets} for own in logits.chunk(case.world_size, dim=1)
    ]


def drive(subject: Any, given: Any, case: Case) -> Plain:
    subject = with_functions_replaced(subject, SumOverRanks=StandInSumOverRanks)
    logits = given.pop("logits").requires_grad_()
    loss = subject(logits, given["targets"])
    if isinstance(loss, Tensor) and loss.ndim == 0 and loss.requires_grad:
        loss.backward()
    value = loss.detach() if isinstance(loss, Tensor) else loss
    return {"loss": value, "logits.grad": logits.grad}


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


def whole_logits(attempt: Attempt) -> Finding | None:
    """A collective gets as many bytes as a rank has logits."""
    part = part_bytes(attempt.case)
    for call in attempt.run.calls if attempt.run and not attempt.error else []:
        if call.bytes >= part > three_numbers_bytes(attempt.case):
            mistake = (
                "exchanges logits: a few numbers per token are enough, and no rank ever needs the "
                "others' logits"
            )
            return Finding(f"rank {call.rank}", mistake, f"{call.op}, {call.source}")
    return None


@on_each_rank
def not_one_finite_tensor(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    loss = output["loss"]
    if not isinstance(loss, Tensor):
        return "should return the loss as a tensor, for backward"
    if loss.shape == attempt.inputs[rank]["targets"].shape:
        return "returns one loss per token: return their mean"
    if loss.isfinite().all():
        return None
    mistake = (
        "overflows: exp of a large logit is inf, so first subtract each token's largest logit over "
        "all ranks"
    )
    return mistake, f"its loss is {loss.item():g}" if loss.ndim == 0 else ""


EXERCISE = OnRanks(
    points=5,
    cases=(
        loss_case(2, 5, 8),
        loss_case(4, 6, 16, scale=200, name="4 ranks, logits of several hundred"),
        loss_case(4, 8, 512),
    ),
    inputs=draw,
    drive=drive,
    tolerance=shared.NEAR,
    budgets=(
        shared.passed_to_collectives("≤ 12 bytes per token", three_numbers_bytes),
        Budget("sends less than half of its logits' bytes", sent_bytes, half_of_its_logits),
    ),
    signs=(
        raises(
            "out of bounds|index out of range",
            "looks up words that another rank has: its own words start at rank · V/N, and targets "
            "outside its part add 0",
        ),
        whole_logits,
        not_one_finite_tensor,
    ),
)
