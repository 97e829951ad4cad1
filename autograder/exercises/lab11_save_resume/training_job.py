"""Lab 11's training job: small, but with everything that a checkpoint has to contain.

It has Adam, a schedule, a position in the data, dropout and a coin toss (torch's and Python's
random states, different on each rank), and a loss scale, because gradients are rounded to 16 bits.
It computes in fp64, so that differences between machines stay below the effect of any mistake.

The scale depends only on the number of steps.  Targets are near MEAN_TARGET, far from what the
model can learn in a few steps, so the largest gradient, that of the output's bias, stays near
2 * MEAN_TARGET: between 2**16 / 2**11 and 2**16 / 2**10, whatever is drawn.  Scales above 2**10
overflow: the first two steps do, and then each step after GROWS_AFTER good ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from autograder.exercises.common import linear_of

GROWS_AFTER = 4  # steps without an overflow
FIRST_SCALE = 2.0**12
MEAN_TARGET = 22.0

Batch = tuple[Tensor, Tensor]  # inputs and targets


def batch_of(given: Any, position: int, rank: int, world_size: int, first: int) -> Batch:
    """``first``: batches before this position were used before the checkpoint and are not sent
    again; they are zeros.  So the steps before the checkpoint cannot be repeated."""
    which = (position * world_size + rank) % len(given["inputs"])
    inputs, targets = given["inputs"][which], given["targets"][which]
    if position < first:
        return torch.zeros_like(inputs), torch.zeros_like(targets)
    return inputs, targets


class Stream:
    """A rank's batches. ``batch_at(position)``: one of them."""

    def __init__(self, batch_at: Callable[[int], Batch]) -> None:
        self.batch_at = batch_at
        self.position = 0

    def next(self) -> Batch:
        self.position += 1
        return self.batch_at(self.position - 1)

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class Scaler:
    """A loss scale, halved when a gradient overflows 16 bits, doubled after GROWS_AFTER steps."""

    def __init__(self) -> None:
        self.scale, self.good_steps = FIRST_SCALE, 0

    def may_step(self, gradients: list[Tensor]) -> bool:
        """Whether the gradients are finite; if so, unscales them."""
        if not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
            self.scale, self.good_steps = self.scale / 2, 0
            return False
        for gradient in gradients:
            gradient /= self.scale
        self.good_steps += 1
        if self.good_steps == GROWS_AFTER:
            self.scale, self.good_steps = self.scale * 2, 0
        return True

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale, "good_steps": self.good_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale, self.good_steps = state["scale"], state["good_steps"]


def model_of(weights: Sequence[Tensor]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for weight in weights:
        layer = linear_of(weight.clone(), torch.zeros(len(weight), dtype=weight.dtype))
        layers += [layer, nn.Tanh(), nn.Dropout(0.2)]
    return nn.Sequential(*layers[:-2])


def warm_up_and_decay(step: int) -> float:
    return min((step + 1) / 4, 1) * 0.9**step


class Job:
    """Like the lab's Job: model, optimizer, scheduler, stream, scaler, and step()."""

    def __init__(
        self,
        weights: Sequence[Tensor],
        batch_at: Callable[[int], Batch],
        mean: Callable[[Tensor], Tensor] = torch.clone,
    ) -> None:
        """``mean``: averages a tensor over all ranks."""
        self.model = model_of(weights)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.Adam(self.parameters, lr=0.02)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, warm_up_and_decay)
        self.stream = Stream(batch_at)
        self.scaler = Scaler()
        self.mean = mean

    def step(self) -> float:
        return self.update(self.mean(self.forward_and_backward()))

    def forward_and_backward(self) -> Tensor:
        """This rank's loss, and its scaled gradients rounded to 16 bits, in one flat tensor."""
        inputs, targets = self.stream.next()
        if random.random() < 0.5:
            inputs = inputs.flip(1)
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        gradients = torch.autograd.grad(loss * self.scaler.scale, self.parameters)
        rounded = [each.half().to(each.dtype).flatten() for each in gradients]
        return torch.cat([loss.detach().view(1), *rounded])

    def update(self, loss_and_gradients: Tensor) -> float:
        sizes = [each.numel() for each in self.parameters]
        loss, *gradients = loss_and_gradients.clone().split([1, *sizes])
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient.view_as(parameter)
        if self.scaler.may_step(gradients):
            self.optimizer.step()
            self.scheduler.step()
        return float(loss)


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
