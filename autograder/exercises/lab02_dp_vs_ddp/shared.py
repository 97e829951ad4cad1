"""Shared by the exercises on data parallelism: models, inputs, vectors, recorded calls.

A model is called as ``model(inputs, targets)`` and returns the mean loss of that batch.  Every rank
has a batch of the same size, so the mean of the ranks' gradients is the whole batch's gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from autograder.exercise import Attempt, Budget, Case, Finding, OnRanks, Plain, sent_bytes
from autograder.exercise.compare import find_difference
from autograder.exercise.signs import (
    MistakeText,
    half_precision,
    keeps_growing,
    never_waited,
    on_each_rank,
)
from autograder.exercises.common import normal
from autograder.guest import growth
from shardlab import models

BUFFERS = ("shift", "gain", "layers.0.scale")  # of an MLP
LR, STEPS = 0.1, 2  # in the case that looks for what grows: growth.STEPS
SAMPLES, TOKENS = 4, 16  # in each rank's batch; in each sample of a GPT
WIDTHS = [128, 256, 256, 64]
# Of the buffer "shift": so many that broadcasting the buffers in every step exceeds the budget.
SHIFT_ROWS = 256

# For both hub_step and ddp_step.
STEP_CASES = (
    Case("2 ranks, an MLP", 2, {"widths": WIDTHS, "steps": growth.STEPS, "restart": 1}),
    Case("4 ranks, an MLP", 4, {"widths": WIDTHS}),
    Case("3 ranks, tied and frozen", 3, {"widths": [192] * 4, "tied": [0, 2], "frozen": 1}),
)
WITHIN_FIVE_PERCENT = Budget("sends ≤ 1.05 × ideal bytes per rank", sent_bytes)
RULES = (never_waited, half_precision, keeps_growing)


class OfSteps(OnRanks):
    """An exercise whose outputs are dicts of steps."""

    def difference(self, attempt: Attempt) -> Finding | None:
        """In the first step that is wrong on some rank: it makes all ranks wrong later."""
        for step in dict.fromkeys(step for wanted in attempt.expected for step in wanted):
            wanted = [{step: each[step]} if step in each else {} for each in attempt.expected]
            if found := find_difference(wanted, attempt.outputs, self.tolerance):
                return found
        return None


class MLP(nn.Module):
    """Linear layers with tanh between them; the loss is the mean squared error.

    ``tied`` names two layers with one weight, ``frozen`` one that is not trained.  Layers are used
    in the order ``used``, else in that in which they are registered.  One buffer is large and is
    not in state_dict(), one has integers, and one belongs to a submodule.
    """

    def __init__(
        self,
        widths: list[int],
        tied: tuple[int, int] | None = None,
        frozen: int | None = None,
        used: list[int] | None = None,
    ) -> None:
        super().__init__()
        layers = [nn.Linear(*fan) for fan in pairwise(widths)]
        if tied is not None:
            layers[tied[1]].weight = layers[tied[0]].weight
        if frozen is not None:
            layers[frozen].requires_grad_(False)
        self.layers, self.used = nn.ModuleList(layers), used or range(len(layers))
        self.shift: Tensor
        self.gain: Tensor
        self.register_buffer("shift", torch.zeros(SHIFT_ROWS, widths[0]), persistent=False)
        self.register_buffer("gain", torch.ones(widths[0], dtype=torch.int64))
        layers[0].register_buffer("scale", torch.ones(widths[0]))

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """inputs [B, first width], targets [B, last width]  ->  loss []"""
        x = (inputs - self.shift.mean(dim=0)) * self.gain * self.layers[0].get_buffer("scale")
        *others, last = self.in_order_of_use()
        for layer in others:
            x = torch.tanh(layer(x))
        return functional.mse_loss(last(x), targets)

    def in_order_of_use(self) -> list[nn.Module]:
        return [self.layers[index] for index in self.used]


def build(case: Case) -> nn.Module:
    if "gpt" in case.params:
        return models.GPT(models.GPTConfig(**case.params["gpt"]))
    layout = ("widths", "tied", "frozen", "used")
    return MLP(**{name: case.params[name] for name in layout if name in case.params})


def build_with(case: Case, state: Mapping[str, Tensor]) -> nn.Module:
    model = build(case)
    load_state(model, state)
    return model


def load_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    for name, tensor in state_of(model).items():
        tensor.copy_(state[name])


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """All of it, by name: state_dict() leaves out buffers that are not persistent."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    return {name: tensor.detach() for name, tensor in named}


def draw(case: Case, rng: np.random.Generator, state: Plain = None) -> list[Plain]:
    """Each rank's own batches, and its own weights and buffers, or ``state`` for all."""
    return [
        {
            "state": state or draw_state(case, rng),
            "batches": [draw_batch(case, rng) for _ in range(steps_in(case))],
        }
        for _ in range(case.world_size)
    ]


def draw_state(case: Case, rng: np.random.Generator) -> dict[str, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        model = build(case)
        if isinstance(model, MLP):  # so large that a weight decay of 1e-4 exceeds the tolerance
            nn.init.constant_(model.layers[-1].get_parameter("bias"), 8)
        for buffer in model.buffers():
            buffer.uniform_(0.5, 1.5) if buffer.is_floating_point() else buffer.random_(1, 4)
        return state_of(model)


def buffers_in(state: Mapping[str, Tensor], names: Collection[str] = BUFFERS) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if name in names}


def draw_batch(case: Case, rng: np.random.Generator) -> list[Tensor]:
    """[inputs, targets]; large targets, so that every mistake shows in the parameters."""
    if "gpt" in case.params:
        vocabulary, shape = case.params["gpt"]["vocabulary"], (2, SAMPLES, TOKENS)
        return list(torch.from_numpy(rng.integers(vocabulary, size=shape)))
    first, *_, last = case.params["widths"]
    return [normal(rng, SAMPLES, first), normal(rng, SAMPLES, last, scale=4)]


def steps_in(case: Case) -> int:
    steps: int = case.params.get("steps", STEPS)
    return steps


TakeStep = Callable[[nn.Module, list[Tensor], int], Any]


def take_steps(case: Case, given: Plain, take_step: TakeStep) -> dict[str, Plain]:
    """The results of the first steps and of the last."""
    model, output = build_with(case, given["state"]), {}
    for step, batch in enumerate(given["batches"]):
        take_step(model, batch, step)
        if is_compared(step, case):
            output[f"step {step}"] = after_step(model)
    return output


def is_compared(step: int, case: Case) -> bool:
    return step < STEPS or step == steps_in(case) - 1


def drive_steps(case: Case, given: Plain, subject: Any, take_step: TakeStep) -> dict[str, Plain]:
    """`take_steps` with an answer, and what grows from step to step."""
    kept: growth.Growth | None = None

    def observed(model: nn.Module, batch: list[Tensor], step: int) -> None:
        nonlocal kept
        kept = kept or growth.Growth({"model": model, "the answer": subject})
        take_step(model, batch, step)
        kept.after(step)

    output = take_steps(case, given, observed)
    return output | {"grows": kept.found() if kept else []}


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def first_trainable(model: nn.Module) -> nn.Module:
    """The first layer in use that is trained, which backward reaches last."""
    layers = model.in_order_of_use() if isinstance(model, MLP) else model.modules()
    return next(layer for layer in layers if trainable_in(layer))


def trainable_in(module: nn.Module) -> list[nn.Parameter]:
    """Without those of the modules inside it."""
    return [p for p in module.parameters(recurse=False) if p.requires_grad]


def after_step(model: nn.Module) -> dict[str, Any]:
    parts = [parameter.grad for parameter in trainable(model) if parameter.grad is not None]
    return {
        "gradients": flat(parts) if len(parts) == len(trainable(model)) else None,
        "parameters": flat(model.parameters()),
        "model.training": model.training,
        "buffers": {name: buffer.detach() for name, buffer in model.named_buffers()},
    }


@on_each_rank
def lacks_gradients(output: Any) -> MistakeText:
    steps = [each for each in output.values() if isinstance(each, dict)]
    if all(each.get("gradients") is not None for each in steps):
        return None
    return "ends with .grad = None for a parameter that is trained: it should be the mean"


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """One vector, in the order of ``model.parameters()``, with tied ones once."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def lr_of(step: int) -> float:
    return LR / (1 + step % 2)


def sgd_step(model: nn.Module, lr: float = LR) -> None:
    with torch.no_grad():
        for parameter in trainable(model):
            if parameter.grad is not None:
                parameter.sub_(lr * parameter.grad)


def parameter_bytes(case: Case, *, trained: bool = False) -> int:
    """Counts a tied parameter once."""
    return sum(p.nbytes for p in build(case).parameters() if p.requires_grad or not trained)


def frozen_names(case: Case) -> list[str]:
    return [name for name, p in build(case).named_parameters() if not p.requires_grad]


def start_bytes(case: Case) -> int:
    """Bytes of the broadcast at the start: parameters and buffers."""
    return parameter_bytes(case) + sum(buffer.nbytes for buffer in build(case).buffers())
