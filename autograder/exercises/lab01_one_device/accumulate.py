"""One optimizer step from many micro-batches, equal to the step on the whole batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from autograder.exercise import NAMED_MISTAKES, Attempt, Budget, Case, Limit, OnRanks, Plain, equal
from autograder.exercise.process_memory import OVERHEAD_BYTES, process_memory_budget
from autograder.exercise.signs import MistakeText, on_each_rank, over_budget
from autograder.exercises.lab01_one_device.dynamic_loss_scaler import as_number
from autograder.guest.moments import START, mark
from shardlab.models import GPT, IGNORE, GPTConfig
from shardlab.paper_layer import saved_bytes

CONFIG = GPTConfig(layers=1, heads=2, width=16, context=32, vocabulary=40)
FORWARD = "near the end of a forward pass"
LEARNING_RATE, MOMENTUM = 0.5, 0.9
OLD_GRADIENT = 0.01  # in every `.grad` before the first call
TOLERANCE = 1e-6

Batch = tuple[Tensor, Tensor]


def batches_case(name: str, shapes: list[tuple[int, int]], counts: list[float]) -> Case:
    """shapes: [sequences, tokens] of each micro-batch; counts: the share of targets that count."""
    return Case(name, 1, {"shapes": shapes, "counts": counts})


def draw_batches(case: Case, rng: np.random.Generator) -> Plain:
    """Weights to start from, and micro-batches for two steps."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        weights = GPT(CONFIG).state_dict()
    shares = list(zip(case.params["shapes"], case.params["counts"], strict=True))
    steps = [[draw_batch(rng, shape, share) for shape, share in shares] for _ in range(2)]
    return {"weights": dict(weights), "steps": steps}


def draw_batch(rng: np.random.Generator, shape: tuple[int, int], share: float) -> Batch:
    tokens, targets = torch.from_numpy(rng.integers(CONFIG.vocabulary, size=(2, *shape)))
    counted = round(share * targets.numel())
    ignored = rng.permutation(targets.numel())[counted:]
    targets.view(-1)[torch.from_numpy(ignored)] = IGNORE
    return tokens, targets.clone()


def model_and_optimizer(given: Plain) -> tuple[GPT, torch.optim.Optimizer]:
    model = GPT(CONFIG)
    model.load_state_dict(given["weights"])
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, OLD_GRADIENT)
    return model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)


def output_of(steps: int, model: GPT, losses: list[Plain]) -> Plain:
    weights = parameters_to_vector(model.parameters()).detach()
    return {"optimizer steps": steps, "weights": weights, "losses": losses}


def drive(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    model, optimizer = model_and_optimizer(given)
    steps: list[int] = []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    mark(START)
    model.norm.register_forward_hook(lambda *_: mark(FORWARD))
    losses = [as_number(subject(model, optimizer, batches)) for batches in given["steps"]]
    return output_of(len(steps), model, losses)


@cache
def autograd_bytes(sequences: int, tokens: int) -> int:
    """What autograd saves for one micro-batch."""
    return saved_bytes(GPT(CONFIG), *torch.zeros(2, sequences, tokens, dtype=torch.int64))


def activation_limit_bytes(case: Case) -> float:
    """50 % more than autograd saves: room for logits and for the operators' temporary tensors."""
    return 1.5 * max(autograd_bytes(*shape) for shape in case.params["shapes"])


ONE_AT_A_TIME = Budget(
    "keeps the activations of one micro-batch at a time",
    limit=lambda case: Limit(activation_limit_bytes(case)),
    used=lambda run: run.memory.peak_of("activations").tolist(),
    heading="activations",
)
# Measured only in cases where the activations of several micro-batches would be visible.
FROM_OUTSIDE = process_memory_budget(
    FORWARD, lambda case: most if (most := activation_limit_bytes(case)) > OVERHEAD_BYTES else None
)


@on_each_rank
def undefined_mean(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    """torch's mean over no targets is nan, although its gradients are 0."""
    if all(not isinstance(loss, float) or math.isfinite(loss) for loss in output["losses"]):
        return None
    return (
        "divides by 0 if no target of a micro-batch counts, as a mean of means does: divide the "
        "sum of the losses by the number of counted tokens in all micro-batches"
    )


@on_each_rank
def wrong_loss(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    """The step is right, but the returned loss is not."""
    wanted, got = attempt.expected[rank], output["losses"]
    if not equal(wanted["weights"], output["weights"], TOLERANCE):
        return None
    if None in got:
        return "returns nothing: return the mean loss"
    if equal(wanted["losses"], got, TOLERANCE):
        return None
    mistake = "takes the right step but does not return the mean loss over all counted tokens"
    first = f"{got[0]:.6f}" if isinstance(got[0], float) else got[0]
    return mistake, f"{first}, expected {wanted['losses'][0]:.6f}"


keeps_all_activations = over_budget(
    ONE_AT_A_TIME.heading,
    "keeps the activations of several micro-batches at a time: call backward for each before the "
    "forward pass of the next",
)


EXERCISE = OnRanks(
    points=5,
    cases=(
        batches_case("4 equal micro-batches", [(4, 16)] * 4, [1.0] * 4),
        batches_case("lengths differ", [(4, 8), (4, 32), (4, 20)], [1.0] * 3),
        batches_case("some targets are -100", [(4, 16)] * 4, [1.0, 0.25, 0.5, 0.75]),
    ),
    inputs=draw_batches,
    drive=drive,
    tolerance=TOLERANCE,
    named_within=1e-3,  # mistakes may lead to weights of any size
    budgets=(ONE_AT_A_TIME, FROM_OUTSIDE),
    allows=frozenset(),
    signs=(undefined_mean, NAMED_MISTAKES, wrong_loss, keeps_all_activations),
    memory=True,
)
