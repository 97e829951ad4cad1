"""The mean loss over all tokens of a step whose micro-batches and ranks have different numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autograder.exercise import NAMED_MISTAKES, Attempt, Budget, Case, Limit, OnRanks, Plain
from autograder.exercise.budget import recorded_calls_explain, sent_since
from autograder.exercise.signs import MistakeText, is_over, no_barrier, on_each_rank
from autograder.exercises.common import FLOAT_BYTES
from autograder.exercises.lab13_accelerate.shared import (
    EXCHANGES,
    as_number,
    new_accelerator,
    with_weights,
)
from autograder.guest.moments import mark
from shardlab import measure
from shardlab.run import Run

VOCABULARY, SEQUENCES = 11, 4
IGNORED = -100
STEPS = 2
LR = 0.5
STEP = "step"
MICRO_BATCHES = "steps"  # their micro-batches: withheld until the bytes sent before are counted
MESSAGES = "messages of a rank"
SENT_FROM_BYTES = 2**17  # of gradients: gloo's own messages would exceed a few percent of less

MicroBatch = Sequence[Tensor]  # token ids and labels, [sequences, tokens] each


def make_model(weights: list[Tensor]) -> nn.Module:
    vocabulary, width = weights[0].shape
    layers = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
    return with_weights(nn.Sequential(*layers), weights)


def draw_inputs(case: Case, rng: np.random.Generator) -> list[Plain]:
    vocabulary = case.params["vocabulary"]
    weights = [
        torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)) for shape in shapes_of(case)
    ]

    def micro_batch(is_empty: bool) -> list[Tensor]:
        lengths = [0] * SEQUENCES if is_empty else rng.integers(1, 13, size=SEQUENCES).tolist()
        width = max(lengths) + int(rng.integers(1, 4))  # the tokenizer pads to a multiple
        ids, labels = rng.integers(vocabulary, size=(2, SEQUENCES, width))
        padded = np.arange(width) >= np.array(lengths)[:, None]
        ids[padded], labels[padded] = 0, IGNORED
        return [torch.from_numpy(ids), torch.from_numpy(labels)]

    empty = [tuple(each) for each in case.params.get("empty", [])]
    count = case.params["micro_batches"]
    return [
        {
            "weights": weights,
            MICRO_BATCHES: [
                [micro_batch((rank, i) in empty) for i in range(count)] for _ in range(STEPS)
            ],
        }
        for rank in range(case.world_size)
    ]


def shapes_of(case: Case) -> list[tuple[int, ...]]:
    vocabulary, width = case.params["vocabulary"], case.params["width"]
    return [(vocabulary, width), (vocabulary, width), (vocabulary,)]


def drive(subject: Callable[..., Any], given: Any, case: Case) -> Plain:
    accelerator = new_accelerator(case.params["micro_batches"])
    model = accelerator.prepare(make_model(given["weights"]))
    parameters = dict(accelerator.unwrap_model(model).named_parameters())
    losses, gradients = list[float](), dict[str, Plain]()
    is_cleared = is_changed = False
    for step in range(STEPS):
        micro_batches = mark(MICRO_BATCHES)
        before = [each.detach().clone() for each in parameters.values()]
        with measure(STEP):
            loss = subject(accelerator, model, micro_batches)
        losses.append(as_number(loss))
        is_changed |= not all(map(torch.equal, before, parameters.values()))
        is_cleared |= any(each.grad is None for each in parameters.values())
        of_step = {
            name: torch.zeros_like(each) if each.grad is None else each.grad
            for name, each in parameters.items()
        }
        gradients |= of_one_step(step, of_step)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.sub_(LR * of_step[name])
        model.zero_grad()
    outputs = {"losses": as_tensor(losses), **gradients}
    return {**outputs, "is cleared": is_cleared, "is changed": is_changed}


def of_one_step(step: int, gradients: Mapping[str, Tensor]) -> dict[str, Plain]:
    return {f"the gradient of {name}, step {step}": each for name, each in gradients.items()}


def as_tensor(losses: Sequence[float]) -> Tensor:
    """The losses as a tensor, in whose comparison nan equals nan."""
    return torch.tensor(losses, dtype=torch.float64)


def messages(run: Run) -> list[int]:
    return [
        sum(call.op in EXCHANGES for call in run.calls_in(STEP, rank))
        for rank in range(run.world_size)
    ]


def sent_limit(case: Case) -> Limit | None:
    """A ring all-reduce of the gradients in each step."""
    gradient_bytes = FLOAT_BYTES * sum(map(math.prod, shapes_of(case)))
    if gradient_bytes < SENT_FROM_BYTES:
        return None
    return Limit.around(STEPS * 2 * (1 - 1 / case.world_size) * gradient_bytes, 0.05)


@on_each_rank
def leaves_no_gradient(output: Any) -> MistakeText:
    if output["is changed"]:
        return "changes the parameters: the optimizer steps after your function returns, not in it"
    if output["is cleared"]:
        return "leaves .grad empty: call backward, and do not clear what the optimizer needs"
    return None


@on_each_rank
def reduces_gradients_again(rank: int, attempt: Attempt) -> MistakeText:
    if rank not in is_over(attempt, MESSAGES) or attempt.run is None:
        return None
    calls = [call for call in attempt.run.calls_in(STEP, rank) if call.op in EXCHANGES]
    with_gradients = sum(call.bytes > 100 for call in calls)
    if with_gradients <= STEPS:
        return None
    mistake = (
        "all-reduces gradients more than once a step: DDP averages them in the last backward pass, "
        "if accelerator.accumulate gets the prepared model, and nothing more is needed"
    )
    others = len(calls) - with_gradients
    return mistake, f"{with_gradients} with gradients, {others} others in {STEPS} steps"


def case_of(
    name: str,
    world_size: int,
    micro_batches: int,
    *empty: tuple[int, int],
    vocabulary: int = VOCABULARY,
    width: int = 6,
) -> Case:
    """``empty``: (rank, index) of micro-batches with only padding."""
    params = {"micro_batches": micro_batches, "empty": [list(each) for each in empty]}
    return Case(name, world_size, params | {"vocabulary": vocabulary, "width": width})


EXERCISE = OnRanks(
    points=3,
    cases=(
        case_of("2 ranks, 3 micro-batches, one of them all padding", 2, 3, (1, 0)),
        case_of("4 ranks, 2 micro-batches", 4, 2),
    ),
    inputs=draw_inputs,
    withheld=MICRO_BATCHES,
    drive=drive,
    tolerance=1e-5,
    engine="torch",
    budgets=(
        Budget(
            "3 messages a step: the gradients, the number of tokens, the loss",
            messages,
            lambda case: Limit(3 * STEPS),
            MESSAGES,
            unit="messages",
        ),
        Budget(
            "sends ≤ 1.05 × the gradients per step", sent_since(MICRO_BATCHES, STEP), sent_limit
        ),
        recorded_calls_explain(
            sent_since(MICRO_BATCHES, STEP), lambda case: sent_limit(case) is not None
        ),
    ),
    rules=(no_barrier,),
    signs=(leaves_no_gradient, NAMED_MISTAKES, reduces_gradients_again),
)
