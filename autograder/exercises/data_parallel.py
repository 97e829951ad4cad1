"""What exercises on data parallelism share: models, their inputs, one process as the oracle.

A model is called as ``model(inputs, targets)`` and gives the mean loss of that batch.  Every rank
has a batch of the same size, so the mean of the ranks' gradients is the whole batch's gradient.
Vectors are flat: all parameters in the order of ``model.parameters()``, a tied one once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autograder.exercise import Attempt, Case, Finding, Plain
from autograder.exercise.compare import equal
from shardlab import models
from shardlab.run import Call

LR = 0.1
STEPS = 2
SAMPLES = 4  # in each rank's batch
TOKENS = 16  # in each sample of a GPT


class MLP(nn.Module):
    """Linear layers with tanh between them; the loss is the mean squared error.

    ``tied`` names two layers with one weight, ``frozen`` one that is not trained.
    """

    def __init__(
        self, widths: list[int], tied: list[int] | None = None, frozen: int | None = None
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(fan_in, fan_out) for fan_in, fan_out in pairwise(widths)
        )
        if tied is not None:
            first, second = tied
            self.layers[second].weight = self.layers[first].weight
        if frozen is not None:
            self.layers[frozen].requires_grad_(False)
        self.shift: Tensor
        self.register_buffer("shift", torch.zeros(widths[0]))

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """inputs [B, first width], targets [B, last width]  ->  loss []"""
        x = inputs - self.shift
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        return F.mse_loss(self.layers[-1](x), targets)


def build(case: Case) -> nn.Module:
    if "gpt" in case.params:
        return models.GPT(models.GPTConfig(**case.params["gpt"]))
    layout = ("widths", "tied", "frozen")
    return MLP(**{name: case.params[name] for name in layout if name in case.params})


def build_with(case: Case, state: Mapping[str, Tensor]) -> nn.Module:
    model = build(case)
    model.load_state_dict(state)
    return model


# ---- inputs -------------------------------------------------------------------------------------


def draw_unequal(case: Case, rng: np.random.Generator) -> list[Plain]:
    """Weights and buffers that differ from rank to rank, and each rank's own batches."""
    return [
        {"state": draw_state(case, rng), "batches": draw_batches(case, rng)}
        for _ in range(case.world_size)
    ]


def draw_equal(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same weights everywhere, and each rank's own batches."""
    state = draw_state(case, rng)
    return [{"state": state, "batches": draw_batches(case, rng)} for _ in range(case.world_size)]


def draw_state(case: Case, rng: np.random.Generator) -> dict[str, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        model = build(case)
        for buffer in model.buffers():
            nn.init.normal_(buffer)
        return model.state_dict()


def draw_batches(case: Case, rng: np.random.Generator) -> list[list[Tensor]]:
    return [draw_batch(case, rng) for _ in range(STEPS)]


def draw_batch(case: Case, rng: np.random.Generator) -> list[Tensor]:
    """[inputs, targets]"""
    if "gpt" in case.params:
        shape = (2, SAMPLES, TOKENS)
        return list(torch.from_numpy(rng.integers(case.params["gpt"]["vocabulary"], size=shape)))
    widths = case.params["widths"]
    sides = [
        (1, widths[0]),
        (4, widths[-1]),
    ]  # targets are large, so that every mistake shows in the parameters
    return [
        torch.from_numpy(scale * rng.standard_normal((SAMPLES, width))).float()
        for scale, width in sides
    ]


# ---- vectors ------------------------------------------------------------------------------------


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def flat_parameters(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def flat_gradients(model: nn.Module) -> Tensor | None:
    """None where a trainable parameter has no gradient."""
    gradients = [parameter.grad for parameter in trainable(model)]
    if any(gradient is None for gradient in gradients):
        return None
    return torch.cat(
        [gradient.detach().flatten() for gradient in gradients if gradient is not None]
    )


def parameter_bytes(case: Case, *, only_trainable: bool = False) -> int:
    """Of all parameters, a tied one once."""
    model = build(case)
    chosen = trainable(model) if only_trainable else list(model.parameters())
    return sum(parameter.nbytes for parameter in chosen)


def buffer_bytes(case: Case) -> int:
    return sum(buffer.nbytes for buffer in build(case).buffers())


def bytes_by_name(case: Case) -> int:
    """Of all parameters, a tied one under each of its names: what ``state_dict()`` lists."""
    named = build(case).named_parameters(remove_duplicate=False)
    return sum(parameter.nbytes for _, parameter in named)


# ---- the oracle: one process, the whole batch ---------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """After each step."""

    parameters: list[Tensor]
    gradients: list[Tensor]


def one_process(case: Case, inputs: list[Plain]) -> Trained:
    """Rank 0's weights, SGD on the ranks' batches put together."""
    model = build_with(case, inputs[0]["state"])
    trained = Trained([], [])
    for step in range(STEPS):
        batches = [given["batches"][step] for given in inputs]
        take_gradient(model, [torch.cat(side) for side in zip(*batches, strict=True)])
        apply_gradient(model)
        trained.parameters.append(flat_parameters(model))
        trained.gradients.append(known(flat_gradients(model)))
    return trained


def take_gradient(model: nn.Module, batch: list[Tensor]) -> None:
    model.zero_grad()
    model(*batch).backward()


def apply_gradient(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in trainable(model):
            if parameter.grad is not None:
                parameter.sub_(LR * parameter.grad)


def known(gradients: Tensor | None) -> Tensor:
    assert gradients is not None
    return gradients


# ---- what mistakes make of the first step --------------------------------------------------------


class FirstStep:
    """The first step's vectors, right and wrong, for telling a mistake by what it computes."""

    def __init__(self, attempt: Attempt) -> None:
        self.case = attempt.case
        self.inputs = attempt.inputs
        self.world_size = attempt.case.world_size
        self.weights = self.weights_of(0)
        self.gradients: dict[tuple[int, int, int], Tensor] = {}
        self.own = [self.gradient(rank, weights_of=0) for rank in range(self.world_size)]
        self.sum = torch.stack(self.own).sum(dim=0)
        self.mean = self.sum / self.world_size

    def weights_of(self, rank: int) -> Tensor:
        return flat_parameters(build_with(self.case, self.inputs[rank]["state"]))

    def gradient(self, rank: int, *, weights_of: int, buffers_of: int = 0) -> Tensor:
        """Of ``rank``'s own batch, at the weights and buffers that some rank started from."""
        key = rank, weights_of, buffers_of
        if key not in self.gradients:
            model = build_with(self.case, self.inputs[weights_of]["state"])
            theirs = build_with(self.case, self.inputs[buffers_of]["state"])
            for buffer, other in zip(model.buffers(), theirs.buffers(), strict=True):
                buffer.copy_(other)
            take_gradient(model, self.inputs[rank]["batches"][0])
            self.gradients[key] = known(flat_gradients(model))
        return self.gradients[key]

    def stepped(self, gradient: Tensor, weights: Tensor | None = None) -> Tensor:
        """Parameters after the step; of models that have no frozen ones."""
        return (self.weights if weights is None else weights) - LR * gradient


Mistakes = Callable[[FirstStep, int], Iterator[tuple[str, dict[str, Tensor]]]]


def known_mistake(attempt: Attempt, mistakes: Mistakes, who: str = "") -> Finding | None:
    """The first of ``mistakes`` whose vectors are those of a rank after its first step.

    ``mistakes(first, rank)`` gives (name, {key of the output: vector}).  ``who`` is the only rank
    to look at, in words, where it is not any.
    """
    if attempt.error is not None:
        return None
    first = FirstStep(attempt)
    for rank in [0] if who else range(first.world_size):
        output = attempt.outputs[rank]
        if all(near(wanted, output[key]) for key, wanted in attempt.expected[rank].items()):
            continue
        for name, vectors in mistakes(first, rank):
            if all(near(vector, output[key][0]) for key, vector in vectors.items()):
                return Finding(f"rank {rank}", name, anyone=who or "a rank")
    return None


def near(wanted: Any, got: Any) -> bool:
    return equal(wanted, got)


def wrong_from_the_second_step(attempt: Attempt, who: str = "") -> Finding | None:
    if attempt.error is not None:
        return None
    for rank, wanted in enumerate(attempt.expected):
        output = attempt.outputs[rank]
        first_right = all(near(value[0], output[key][0]) for key, value in wanted.items())
        if first_right and not all(near(value, output[key]) for key, value in wanted.items()):
            return Finding(
                f"rank {rank}",
                "is right in the first step and wrong in the next: does .grad still hold the old "
                "gradient? Set it to None before backward",
                anyone=who or "a rank",
            )
    return None


# ---- recorded calls -----------------------------------------------------------------------------


def calls_of(attempt: Attempt, op: str, rank: int) -> list[Call]:
    calls = attempt.run.calls if attempt.run else []
    return [call for call in calls if call.op == op and call.rank == rank]


def handed_in_bytes(attempt: Attempt, op: str, rank: int) -> int:
    return sum(call.bytes for call in calls_of(attempt, op, rank))


# ---- cases --------------------------------------------------------------------------------------

WIDTHS = [128, 256, 256, 64]
OTHER_WIDTHS = [96, 320, 160, 48]
SQUARE_WIDTHS = [192, 192, 192, 192]
SMALL_GPT = {"layers": 2, "heads": 4, "width": 96, "context": 32, "vocabulary": 128}


def step_cases() -> tuple[Case, ...]:
    """For hub_step and for ddp_step alike."""
    return (
        Case("2 ranks, an MLP", 2, {"widths": WIDTHS}),
        Case("4 ranks, an MLP", 4, {"widths": WIDTHS}),
        Case("3 ranks, two layers tied", 3, {"widths": SQUARE_WIDTHS, "tied": [0, 2]}),
        Case("5 ranks, an MLP of other widths", 5, {"widths": OTHER_WIDTHS}, hidden=True),
        Case("3 ranks, a GPT", 3, {"gpt": SMALL_GPT}, hidden=True),
    )
