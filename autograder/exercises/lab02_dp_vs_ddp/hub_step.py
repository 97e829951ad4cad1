"""Data parallelism through rank 0: weights go out, gradients come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import Tensor, nn

from autograder.exercise import Budget, Case, Plain, sent_bytes
from autograder.exercise.budget import received_bytes
from autograder.exercises.lab02_dp_vs_ddp import shared
from autograder.exercises.lab02_dp_vs_ddp.shared import drive_steps, load_state, lr_of

OTHERS_LR = 3  # times the hub's: with the same, new weights could be averaged for gradients
WITHIN_ONE_PERCENT = Budget("sends ≤ 1.01 × ideal bytes per rank", sent_bytes)
# Else the gradients' sum could come through the other ranks, one after another.
FROM_EACH = Budget("the hub receives every gradient", received_bytes, heading="received by a rank")


def draw(case: Case, rng: np.random.Generator) -> list[Plain]:
    """Weights differ from rank to rank; buffers do not, because they are not sent here."""
    given = shared.draw(case, rng)
    for each in given:
        each["state"] |= shared.buffers_in(given[0]["state"])
    return given


def drive(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    """Only the hub's weights last from one step to the next, and only it gets the right ``lr``."""

    def take_step(model: nn.Module, batch: list[Tensor], step: int) -> None:
        if dist.get_rank() > 0:
            load_state(model, given["state"])
        subject(model, *batch, lr_of(step) * (1 if dist.get_rank() == 0 else OTHERS_LR))

    return drive_steps(case, given, subject, take_step)


EXERCISE = shared.OfSteps(
    points=5,
    cases=shared.STEP_CASES,
    inputs=draw,
    drive=drive,
    budgets=(WITHIN_ONE_PERCENT, FROM_EACH),
    allows=frozenset({"send", "recv"}),
    rules=shared.RULES,
)
