"""What decides in more than one exercise: one process as the oracle, and wrong first steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from autograder.exercise import Case, Plain
from autograder.exercises.lab02_dp_vs_ddp.shared import (
    STEPS,
    after_step,
    apply_gradient,
    buffers_in,
    build_with,
)

SMALL_GPT = {"layers": 2, "heads": 4, "width": 96, "context": 32, "vocabulary": 128}
STEP_CASES = (
    Case("5 ranks, an MLP of other widths", 5, {"widths": [96, 320, 160, 48]}),
    Case("3 ranks, a GPT", 3, {"gpt": SMALL_GPT}),
)
BOUNDARIES = {
    "divides": "not asked: nothing is cut into equal parts",
    "does not divide": "not asked, as above",
    "one rank": "not asked: nothing is sent",
    "more ranks than elements": "not asked, as above",
    "no buffers": "3 ranks, a GPT",
}
STEP_BOUNDARIES = BOUNDARIES | {"a tied parameter": "3 ranks, two layers tied"}


def one_process(case: Case, inputs: Any) -> dict[str, Plain]:
    """Rank 0's weights, SGD on the ranks' batches put together."""
    model, output = build_with(case, inputs[0]["state"]), {}
    for step in range(STEPS):
        batches = [given["batches"][step] for given in inputs]
        take_gradient(model, [torch.cat(side) for side in zip(*batches, strict=True)])
        apply_gradient(model)
        output[f"step {step}"] = after_step(case, model)
    return output


def take_gradient(model: nn.Module, batch: list[Tensor]) -> None:
    model.zero_grad()
    model(*batch).backward()


class FirstStep:
    """The first step's vectors, right and wrong."""

    def __init__(self, case: Case, inputs: Any) -> None:
        self.case, self.inputs, self.n = case, inputs, case.world_size
        self.weights = self.weights_of(0)
        self.own = [self.gradient(rank, 0, 0) for rank in range(self.n)]
        self.mean = torch.stack(self.own).mean(dim=0)
        self.sum = torch.stack(self.own).sum(dim=0)

    def weights_of(self, rank: int) -> Tensor:
        return after_step(self.case, build_with(self.case, self.inputs[rank]["state"]))[
            "parameters"
        ]

    def gradient(self, rank: int, weights_of: int, buffers_of: int) -> Tensor:
        """Of ``rank``'s own batch, at the weights and buffers that some rank started from."""
        weights, buffers = self.inputs[weights_of]["state"], self.inputs[buffers_of]["state"]
        model = build_with(self.case, weights | buffers_in(buffers))
        take_gradient(model, self.inputs[rank]["batches"][0])
        return after_step(self.case, model)["gradients"]

    def mean_apart(self, *, same_weights: bool = False) -> Tensor:
        """Of gradients at each rank's own buffers and weights, or rank 0's weights."""
        ranks = range(self.n)
        apart = [self.gradient(rank, 0 if same_weights else rank, rank) for rank in ranks]
        return torch.stack(apart).mean(dim=0)


Vector = Callable[[FirstStep, int], Tensor]  # of a rank


def own(first: FirstStep, rank: int) -> Tensor:
    return first.own[rank]


def first_step(**vectors: Vector) -> Callable[[Case, Any], list[Plain]]:
    """What each rank has after a first step that went wrong in a known way."""

    def outputs(case: Case, inputs: Any) -> list[Plain]:
        first = FirstStep(case, inputs)
        return [
            {"step 0": {key: vector(first, rank) for key, vector in vectors.items()}}
            for rank in range(case.world_size)
        ]

    return outputs
