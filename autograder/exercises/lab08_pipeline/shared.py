"""Shared by the pipeline exercises: a model in stages, budgets of sends, and signs.

A schedule is a list by device of [kind, stage, micro-batch].  A stage is a linear layer and tanh,
all of the same width, so that all tensors sent between stages have the same shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autograder.exercise import Attempt, Budget, Case, Finding, Limit, Plain
from autograder.exercise.signs import MistakeText, on_each_rank, raises
from shardlab.errors import DeadlockError, Waiting
from shardlab.run import Run

P2P_ONLY = frozenset({"send", "recv"})
FLOAT_BYTES = 4
NEAR = 1e-5  # additions in another order may differ by this much
Plan = list[list[list[Any]]]


def draw_model(case: Case, rng: np.random.Generator) -> list[Plain]:
    """By rank: its stages' weights; inputs for the first stage's rank, targets for the last's."""
    ranks, width, samples = case.world_size, case.params["width"], case.params["samples"]
    stages = ranks * case.params.get("chunks", 1)

    def normal(*shape: int, over: float = 1.0) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape) / over).float()

    of_a_stage = (width, width), (width,)
    weights = [[normal(*of, over=width**0.5) for of in of_a_stage] for _ in range(stages)]
    inputs, targets = (normal(case.params["micro_batches"], samples, width) for _ in range(2))
    return [
        {
            "weights": weights[rank::ranks],
            "inputs": inputs if rank == 0 else None,
            "targets": targets if rank == (stages - 1) % ranks else None,
        }
        for rank in range(ranks)
    ]


class Stage(nn.Module):
    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(F.linear(x, self.weight, self.bias))


def gradients_of(stage: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in stage.parameters()]


def sends(label: str, messages: Callable[[Case], Sequence[int]]) -> Budget:
    """``messages``: by rank, how many tensors of one micro-batch it sends to other ranks."""

    def limit(case: Case) -> Limit:
        of_one = FLOAT_BYTES * case.params["samples"] * case.params["width"]
        return Limit([of_one * number for number in messages(case)])

    def used(run: Run) -> list[int]:
        """From the calls, since gloo adds to each message; the grader checks them on the wire."""
        sent = [(call.rank, call.bytes) for call in run.calls if call.op == "send"]
        return [sum(n for by, n in sent if by == rank) for rank in range(run.world_size)]

    return Budget(label, used, limit)


# ---- signs --------------------------------------------------------------------------------------


def waiting_in(attempt: Attempt) -> list[Waiting]:
    table = attempt.error.table if isinstance(attempt.error, DeadlockError) else ()
    return [row for row in table if row.state == "waiting"]


def all_wait_in_recv(attempt: Attempt) -> Finding | None:
    waiting = waiting_in(attempt)
    if len(waiting) < 2 or not all(row.call.startswith("recv") for row in waiting):
        return None
    return Finding(
        "the ranks",
        "receive before they send, on both sides: each waits for a message that the other sends "
        "only after its own receive. Send each result as soon as it is computed",
        waiting[0].source,
        who_if_hidden="the ranks",
    )


no_input_gradient = raises(
    "NoneType",
    "has no gradient to send: call requires_grad_() on the received tensor before the stage uses "
    "it, and send its .grad",
    quoted=True,
)


@on_each_rank
def no_gradients(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    if any(grad is not None for stage in output["gradients"] for grad in stage):
        return None
    return (
        "ends without gradients: every stage sends its input's gradient back to the previous stage"
    )
