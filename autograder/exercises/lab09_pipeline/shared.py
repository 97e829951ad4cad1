"""Shared by the pipeline exercises: a model in stages, budgets of sends, and signs.

A schedule is a list by device of [kind, stage, micro-batch].  A stage is a linear layer and tanh,
all of the same width, so that all tensors sent between stages have the same shape.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from autograder.exercise import Attempt, Budget, Case, Finding, Limit, Plain
from autograder.exercise.form import Sign
from autograder.exercise.signs import MistakeText, on_each_rank
from autograder.exercises.common import FLOAT_BYTES, normal
from shardlab.errors import DeadlockError, RankError
from shardlab.run import Call, Run

P2P_ONLY = frozenset({"send", "recv"})
TOLERANCE = 1e-5  # additions in another order may differ by this much
Plan = list[list[list[Any]]]


def stages_of_ranks(case: Case) -> list[list[int]]:
    """By rank: the stages of the case's plan; without one, stage s is on rank s % ranks."""
    ranks, chunks = case.world_size, case.params.get("chunks", 1)
    if "plan" in case.params:
        return [sorted({stage for _, stage, _ in actions}) for actions in case.params["plan"]]
    return [[*range(rank, ranks * chunks, ranks)] for rank in range(ranks)]


def shape_of(case: Case) -> tuple[int, ...]:
    """Of every tensor that stages exchange."""
    return tuple(case.params["shape"])


def draw_model(case: Case, rng: np.random.Generator) -> list[Plain]:
    """By rank: its stages' weights; inputs for the first stage's rank, targets for the last's."""
    of_ranks, shape = stages_of_ranks(case), shape_of(case)
    stages, width = sum(map(len, of_ranks)), shape[-1]
    of_a_stage = (width, width), (width,)
    weights = [[normal(rng, *of, scale=width**-0.5) for of in of_a_stage] for _ in range(stages)]
    inputs, targets = (normal(rng, case.params["micro_batches"], *shape) for _ in range(2))
    return [
        {
            "weights": [weights[stage] for stage in own],
            "inputs": inputs if 0 in own else None,
            "targets": targets if stages - 1 in own else None,
        }
        for own in of_ranks
    ]


class Stage(nn.Module):
    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(functional.linear(x, self.weight, self.bias))


def gradients_of(stage: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in stage.parameters()]


def contents(value: Any) -> Any:
    """Of an argument, for a comparison: values of its tensors and of its modules' parameters."""
    if isinstance(value, nn.Module):
        return contents([*value.parameters()])
    if isinstance(value, dict):
        return {key: contents(each) for key, each in value.items()}
    if isinstance(value, list):
        return [contents(each) for each in value]
    return value.tolist() if isinstance(value, Tensor) else value


def sends(label: str, messages: Callable[[Case], Sequence[int]]) -> Budget:
    """``messages``: by rank, how many tensors of one micro-batch it sends to other ranks."""

    def limit(case: Case) -> Limit:
        of_one = FLOAT_BYTES * math.prod(shape_of(case))
        return Limit([of_one * number for number in messages(case)])

    def used(run: Run) -> list[int]:
        """From the calls, since gloo adds to each message; the grader checks them on the wire."""
        sent = [(call.rank, call.bytes) for call in run.calls if call.op == "send"]
        return [sum(n for by, n in sent if by == rank) for rank in range(run.world_size)]

    return Budget(label, used, limit)


def not_waited_for(run: Run, rank: int) -> list[Call]:
    """A rank's isends and irecvs without a wait: the recorder logs their end when it returns."""
    return [call for call in run.calls_of(rank) if call.is_p2p and call.end_s is None]


waits_for_messages = Budget(
    "waits for every isend and irecv",
    lambda run: [len(not_waited_for(run, rank)) for rank in range(run.world_size)],
    lambda case: Limit(0),
    heading="without wait",
    unit="messages",
)


# ---- signs --------------------------------------------------------------------------------------


class Message(NamedTuple):
    """One end of a message in a right run: ``rank`` has to ``op`` the result of ``action``."""

    op: str
    peer: int
    action: tuple[str, int, int]


def messages_of(plan: Plan) -> list[list[Message]]:
    """By rank, in order: what it receives before each of its actions and sends after it."""
    rank_of = {stage: rank for rank, actions in enumerate(plan) for _, stage, _ in actions}
    found: list[list[Message]] = [[] for _ in plan]
    for rank, actions in enumerate(plan):
        for kind, stage, k in actions:
            step = 1 if kind == "F" else -1
            if stage - step in rank_of:
                source = kind, stage - step, k
                found[rank].append(Message("recv", rank_of[stage - step], source))
            if stage + step in rank_of:
                found[rank].append(Message("send", rank_of[stage + step], (kind, stage, k)))
    return found


def message_never_arrives(plan_of: Callable[[Case], Plan]) -> Sign:
    """A rank waits for a result; its neighbor has sent less than a right run by the point where it
    returned or waits in a receive."""

    def sign(attempt: Attempt) -> Finding | None:
        if not isinstance(attempt.error, DeadlockError):
            return None
        right = messages_of(plan_of(attempt.case))
        waits_for = [_open_receive(attempt, rank, messages) for rank, messages in enumerate(right)]
        rows = {row.rank: row for row in attempt.error.table}
        for rank, wanted in enumerate(waits_for):
            if wanted is None:
                continue
            sender = wanted.peer
            due, does = right[sender], "returns"
            if rows[sender].state == "waiting":
                at = waits_for[sender]
                due, does = due[: due.index(at)] if at else [], "waits in a receive"
            is_to = [message[:2] == ("send", rank) for message in due]
            sent = [c for c in attempt.calls_of(sender) if (c.op, c.peer) == ("send", rank)]
            if len(sent) < sum(is_to) and Message("send", rank, wanted.action) in due:
                mistake = "before it sends a result that another rank needs, or never sends it"
                evidence = f"rank {rank} waits for the result of {wanted.action}, "
                evidence += rows[rank].source
                return Finding(f"rank {sender}", f"{does} {mistake}", evidence)
        return None

    return sign


def _open_receive(attempt: Attempt, rank: int, right: list[Message]) -> Message | None:
    """What a right run receives where a rank waits: None if it waits in no receive, or if its
    receives so far are not those of a right run."""
    receives = [call for call in attempt.calls_of(rank) if call.op == "recv"]
    wanted = [message for message in right if message.op == "recv"]
    for call, message in zip(receives, wanted, strict=False):
        if call.peer != message.peer:
            break
        if call.end_s is None:
            return message
    return None


@on_each_rank
def unwaited(rank: int, attempt: Attempt) -> MistakeText:
    for call in not_waited_for(attempt.run, rank) if attempt.run else []:
        mistake = (
            "does not wait for its isends or irecvs: until a message is over its tensor must not "
            "be used, changed or freed, so call wait() on each before you return"
        )
        return mistake, call.source
    return None


def sends_none(attempt: Attempt) -> Finding | None:
    error = attempt.error
    pattern = "(?s)Expected parameter `tensor`.*NoneType"
    if isinstance(error, RankError) and re.search(pattern, error.message):
        mistake = (
            "passes None to a send or receive, in place of a tensor (a .grad is None before the "
            "backward; it stays None for a tensor that did not require a gradient when the stage "
            "used it, for one that was computed from others, and if the path from it to the loss "
            "was detached)"
        )
        return Finding(f"rank {error.rank}", mistake, error.source)
    return None


@on_each_rank
def changes_arguments(output: Any) -> MistakeText:
    """A rule.  ``drive`` returns the names of what has changed."""
    if "parameters" in output["changed"]:
        return "changes its stage's parameters: only their gradients are asked for"
    for name in output["changed"]:
        return f"changes its argument {name}: the caller uses it again for the next step"
    return None


@on_each_rank
def no_gradients(output: Any) -> MistakeText:
    has_some = [any(grad is not None for grad in stage) for stage in output["gradients"]]
    if all(has_some):
        return None
    if any(had and not some for had, some in zip(output["had_gradients"], has_some, strict=True)):
        return (
            "ends without the gradients that it has computed: they belong in .grad of the "
            "parameters, and zero_grad() after the backward removes them"
        )
    return (
        "has a stage without gradients: call loss.backward(), or y.backward(y_grad) with the "
        "gradient received, on the very y that the stage returned (a detached y has no path back "
        "to it), and send x.grad to the previous stage"
    )
