"""Data parallelism by all-reduce: weights are broadcast once, gradients averaged in each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from autograder.exercise import Case, Plain
from autograder.exercises.lab02_dp_vs_ddp import shared
from autograder.exercises.lab02_dp_vs_ddp.shared import drive_steps, load_state, lr_of


def drive(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    """In one case the training starts again: the other ranks' state is no longer rank 0's."""
    restart = case.params.get("restart", 0)

    def take_step(model: nn.Module, batch: list[Tensor], step: int) -> None:
        if step == restart and dist.get_rank() > 0:
            load_state(model, given["state"])
        subject(model, *batch, lr_of(step), step - restart if step >= restart else step)

    return drive_steps(case, given, subject, take_step)


EXERCISE = shared.OfSteps(
    points=5,
    cases=shared.STEP_CASES,
    inputs=shared.draw,
    drive=drive,
    budgets=(shared.WITHIN_FIVE_PERCENT,),
    allows=frozenset({"broadcast", "all_reduce"}),
    rules=shared.RULES,
    signs=(shared.lacks_gradients,),
)
