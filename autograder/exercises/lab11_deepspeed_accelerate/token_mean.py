"""The mean loss over all tokens of a step whose micro-batches and ranks have different numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autograder.exercise import NAMED_MISTAKES, Attempt, Budget, Case, Limit, OnRanks, Plain
from autograder.exercise.signs import MistakeText, is_over, on_each_rank
from autograder.exercises.lab11_deepspeed_accelerate.accelerators import (
    EXCHANGES,
    as_number,
    new_accelerator,
)
from shardlab import measure
from shardlab.run import Run

VOCABULARY, WIDTH, SEQUENCES = 11, 6, 4
IGNORED = -100
STEPS = 2
FLOAT_BYTES = 4
LR = 0.5
TOLERANCE = 1e-5
STEP = "step"
MESSAGES = "messages of a rank"

MicroBatch = Sequence[Tensor]  # token ids and labels, [sequences, tokens] each


def make_model(weights: list[Tensor]) -> nn.Sequential:
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY))
    with torch.no_grad():
        for parameter, own in zip(model.parameters(), weights, strict=True):
            parameter.copy_(own)
    return model


def draw_inputs(case: Case, rng: np.random.Generator) -> list[Plain]:
    shapes = [(VOCABULARY, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,)]
    weights = [torch.from_numpy(rng.standard_normal(s, dtype=np.float32)) for s in shapes]

    def micro_batch(is_empty: bool) -> list[Tensor]:
        lengths = [0] * SEQUENCES if is_empty else rng.integers(1, 13, size=SEQUENCES).tolist()
        width = max(lengths) + int(rng.integers(1, 4))  # the tokenizer pads to a multiple
        ids, labels = rng.integers(VOCABULARY, size=(2, SEQUENCES, width))
        padded = np.arange(width) >= np.array(lengths)[:, None]
        ids[padded], labels[padded] = 0, IGNORED
        return [torch.from_numpy(ids), torch.from_numpy(labels)]

    empty = [tuple(each) for each in case.params.get("empty", [])]
    count = case.params["micro_batches"]
    return [
        {
            "weights": weights,
            "steps": [
                [micro_batch((rank, i) in empty) for i in range(count)] for _ in range(STEPS)
            ],
        }
        for rank in range(case.world_size)
    ]


def drive(subject: Callable[..., Any], given: Any, case: Case) -> Plain:
    accelerator = new_accelerator(case.params["micro_batches"])
    model = accelerator.prepare(make_model(given["weights"]))
    losses, gradients = list[Plain](), list[Plain]()
    for micro_batches in given["steps"]:
        with measure(STEP):
            loss = subject(accelerator, model, micro_batches)
        losses.append(as_number(loss))
        of_step = [each.grad for each in model.parameters()]
        gradients.append([None if each is None else each.clone() for each in of_step])
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(LR * parameter.grad)
        model.zero_grad()
    are_numbers = all(isinstance(each, float) for each in losses)
    return {"losses": as_tensor(losses) if are_numbers else losses, "gradients": gradients}


def as_tensor(losses: Sequence[float]) -> Tensor:
    """The losses as a tensor, in whose comparison nan equals nan."""
    return torch.tensor(losses, dtype=torch.float64)


def model_bytes() -> int:
    return FLOAT_BYTES * (2 * VOCABULARY * WIDTH + VOCABULARY)


def messages(run: Run) -> list[int]:
    return [
        sum(call.op in EXCHANGES for call in run.calls_in(STEP, rank))
        for rank in range(run.world_size)
    ]


@on_each_rank
def returns_no_number(output: Any) -> MistakeText:
    kinds = [each for each in output["losses"] if isinstance(each, str)]
    if "a NoneType" in kinds:
        return "returns no loss: is a return missing?"
    return ("should return the loss, one number, on every rank", kinds[0]) if kinds else None


@on_each_rank
def sends_too_often(rank: int, attempt: Attempt) -> MistakeText:
    if rank not in is_over(attempt, MESSAGES) or attempt.run is None:
        return None
    calls = [call for call in attempt.run.calls_in(STEP, rank) if call.op in EXCHANGES]
    large = [call for call in calls if call.bytes > 100]
    by_ddp = [call for call in large if call.bytes == model_bytes()]  # all gradients in one bucket
    evidence = f"{len(large)} with gradients, {len(calls) - len(large)} others in {STEPS} steps"
    if len(by_ddp) > STEPS:
        return (
            "all-reduces the gradients of every micro-batch: run forward and backward in "
            "accelerator.accumulate(model)",
            evidence,
        )
    if len(large) > STEPS:
        return "all-reduces the gradients again: DDP has already averaged them", evidence
    return (
        "exchanges numbers for every micro-batch: count the tokens of the whole step first, then "
        "reduce once",
        evidence,
    )


@on_each_rank
def no_gradients(output: Any) -> MistakeText:
    if any(each is None for of_step in output["gradients"] for each in of_step):
        return (
            "leaves no gradients: call accelerator.backward for each micro-batch; the optimizer's "
            "part comes after your function"
        )
    return None


def case_of(name: str, world_size: int, micro_batches: int, *empty: tuple[int, int]) -> Case:
    """``empty``: (rank, index) of micro-batches with only padding."""
    params = {"micro_batches": micro_batches, "empty": [list(each) for each in empty]}
    return Case(name, world_size, params)


EXERCISE = OnRanks(
    points=3,
    cases=(
        case_of("2 ranks, 3 micro-batches", 2, 3),
        case_of("4 ranks, 2 micro-batches", 4, 2),
    ),
    inputs=draw_inputs,
    drive=drive,
    tolerance=TOLERANCE,
    engine="torch",
    budgets=(
        Budget(
            "3 messages a step: the gradients, the number of tokens, the loss",
            messages,
            lambda case: Limit(3 * STEPS),
            MESSAGES,
            unit="messages",
        ),
    ),
    signs=(returns_no_number, no_gradients, NAMED_MISTAKES, sends_too_often),
)
