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
from autograder.exercise.signs import MistakeText, on_each_call, on_each_rank
from shardlab.errors import DeadlockError, RankError, Waiting
from shardlab.ranks.explain import ranks_text
from shardlab.run import Call, Run

P2P_ONLY = frozenset({"send", "recv"})
FLOAT_BYTES = 4
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
    samples = case.params["samples"]
    return (*(samples if isinstance(samples, list) else [samples]), case.params["width"])


def draw_model(case: Case, rng: np.random.Generator) -> list[Plain]:
    """By rank: its stages' weights; inputs for the first stage's rank, targets for the last's."""
    width = case.params["width"]
    of_ranks = stages_of_ranks(case)
    stages = sum(map(len, of_ranks))

    def normal(*shape: int, over: float = 1.0) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape) / over).float()

    of_a_stage = (width, width), (width,)
    weights = [[normal(*of, over=width**0.5) for of in of_a_stage] for _ in range(stages)]
    inputs, targets = (normal(case.params["micro_batches"], *shape_of(case)) for _ in range(2))
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
    return [call for call in run.calls if call.rank == rank and call.is_p2p and call.end_s is None]


waits_for_messages = Budget(
    "waits for every isend and irecv",
    lambda run: [len(not_waited_for(run, rank)) for rank in range(run.world_size)],
    lambda case: Limit(0),
    heading="without wait",
    unit="messages",
)


# ---- signs --------------------------------------------------------------------------------------


def waiting_in(attempt: Attempt) -> list[Waiting]:
    table = attempt.error.table if isinstance(attempt.error, DeadlockError) else ()
    return [row for row in table if row.state == "waiting"]


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
    """A rank waits in recv for a result that its neighbor passed over, or sent under another tag.

    Only for a rank that has received in the order of the plan so far.
    """

    def sign(attempt: Attempt) -> Finding | None:
        if attempt.run is None or not isinstance(attempt.error, DeadlockError):
            return None
        right = messages_of(plan_of(attempt.case))
        for row in waiting_in(attempt):
            is_receive = row.call.startswith("recv")
            if is_receive and (found := _missing(row, attempt.run.calls, right, attempt.error)):
                return found
        return None

    return sign


def _missing(
    row: Waiting, calls: Sequence[Call], right: list[list[Message]], error: DeadlockError
) -> Finding | None:
    rank = row.rank
    receive, wanted = _place(_of(calls, rank, "recv"), right[rank])
    if receive is None or wanted is None:
        return None
    sender = wanted.peer
    to_rank = [m.action for m in right[sender] if (m.op, m.peer) == ("send", rank)]
    sent = [call for call in _of(calls, sender, "send") if call.peer == rank]
    if found := _left_out(row, receive, wanted, calls, right, error):
        return found
    place = to_rank.index(wanted.action)
    if place < len(sent):
        received = [call.tag for call in _of(calls, rank, "recv") if call.peer == sender]
        is_open = received.count(receive.tag) <= [call.tag for call in sent].count(receive.tag)
        if is_open or received[-2:] == [receive.tag] * 2:
            return None  # the tag is right: a wrong shape, or a message that it already has
        return Finding(
            f"rank {rank}",
            "waits for a different tag from the one its message was sent with: both ends must "
            "compute the same tag",
            f"it waits for tag {receive.tag}, {receive.source}; rank {sender} sent the result of "
            f"{wanted.action} under tag {sent[place].tag}, {sent[place].source}",
        )
    stops = "returns"
    if next(each for each in error.table if each.rank == sender).state == "waiting":
        stops = "waits in a receive"
        _, waits_for = _place(_of(calls, sender, "recv"), right[sender])
        here = right[sender].index(Message("send", rank, wanted.action))
        if waits_for is None or right[sender].index(waits_for) < here:
            return None  # it waits in a send, or for a message that comes first
    return Finding(
        f"rank {sender}",
        f"{stops} before it sends a result that another rank needs, or never sends it",
        f"rank {rank} waits for the result of {wanted.action}, {receive.source}",
    )


def _left_out(
    row: Waiting,
    receive: Call,
    wanted: Message,
    calls: Sequence[Call],
    right: list[list[Message]],
    error: DeadlockError,
) -> Finding | None:
    """The sender has sent less than a right run has by the receive it waits in, or elsewhere."""
    sender = wanted.peer
    due = right[sender]
    if next(each for each in error.table if each.rank == sender).state == "waiting":
        _, waits_for = _place(_of(calls, sender, "recv"), due)
        due = due[: due.index(waits_for)] if waits_for else []
    needed = sum(message[:2] == ("send", row.rank) for message in due)
    tags = [call.tag for call in _of(calls, sender, "send") if call.peer == row.rank]
    is_due = Message("send", row.rank, wanted.action) in due and receive.tag not in tags
    if is_due and needed > len(tags) > 0:
        return Finding(
            f"rank {sender}",
            "does not send a result that another rank needs",
            f"rank {row.rank} waits for a message, {receive.source}; by then rank {sender} "
            f"has sent it {len(tags)}, it should have sent {needed}",
        )
    return None


def _of(calls: Sequence[Call], rank: int, op: str) -> list[Call]:
    return [call for call in calls if (call.rank, call.op) == (rank, op)]


def _place(receives: list[Call], right: list[Message]) -> tuple[Call | None, Message | None]:
    """The receive that a rank waits in, and what a right run receives there: None for both if it
    waits in none, or if its receives so far are not those of a right run."""
    wanted = [message for message in right if message.op == "recv"]
    for call, message in zip(receives, wanted, strict=False):
        if call.peer != message.peer:
            break
        if call.end_s is None:
            return call, message
    return None, None


def other_peer(plan_of: Callable[[Case], Plan]) -> Sign:
    """A message to a rank that gets none from this one in a right run."""

    def sign(attempt: Attempt) -> Finding | None:
        for rank, messages in enumerate(messages_of(plan_of(attempt.case))):
            peers = sorted({message.peer for message in messages if message.op == "send"})
            for call in _of(attempt.calls, rank, "send"):
                if call.peer not in peers:
                    return Finding(
                        f"rank {rank}",
                        "sends to a rank that needs none of its results",
                        f"to rank {call.peer}, {call.source}; its results are needed by "
                        f"{ranks_text(peers) if peers else 'no other rank'}",
                    )
        return None

    return sign


def never_received(plan_of: Callable[[Case], Plan]) -> Sign:
    """A rank waits in a send to another one that has returned."""

    def sign(attempt: Attempt) -> Finding | None:
        table = attempt.error.table if isinstance(attempt.error, DeadlockError) else ()
        returned = {row.rank for row in table if row.state == "finished"}
        for row in waiting_in(attempt):
            peer = min(returned & {*row.waits_for}, default=None)
            if attempt.run is None or peer is None or not row.call.startswith("send to"):
                continue
            sends = _of(attempt.run.calls, row.rank, "send")
            messages = messages_of(plan_of(attempt.case))[row.rank]
            needed = sum(message[:2] == ("send", peer) for message in messages)
            if sum(call.peer == peer for call in sends) > needed:
                mistake = "sends more messages to a rank than that rank has to receive"
                return Finding(f"rank {row.rank}", mistake, f"{row.source}, to rank {peer}")
            mistake = "returns before it has received all messages that are sent to it"
            return Finding(f"rank {peer}", mistake, f"rank {row.rank}: {row.source}")
        return None

    return sign


@on_each_rank
def uses_before_arrival(rank: int, attempt: Attempt) -> MistakeText:
    for call in not_waited_for(attempt.run, rank) if attempt.run else []:
        if call.op == "recv":
            return "does not wait for an irecv: its data may arrive too late", call.source
    return None


@on_each_rank
def leaves_sends(rank: int, attempt: Attempt) -> MistakeText:
    for call in not_waited_for(attempt.run, rank) if attempt.run else []:
        mistake = (
            "does not wait for its isends: until a send is over its tensor must not be changed or "
            "freed, so call wait() on each before you return"
        )
        return mistake, call.source
    return None


@on_each_call
def other_dtype(call: Call) -> MistakeText:
    if call.op == "send" and call.dtype not in ("float32", ""):
        return f"sends {call.dtype}: every tensor sent is float32"
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
def no_gradients(output: Any, case: Case) -> MistakeText:
    has_some = [any(grad is not None for grad in stage) for stage in output["gradients"]]
    if all(has_some):
        return None
    if any(had and not some for had, some in zip(output["had_gradients"], has_some, strict=True)):
        return (
            "ends without the gradients that it has computed: they belong in .grad of the "
            "parameters, and zero_grad() after the backward removes them"
        )
    if case.world_size == 1:
        return (
            "ends without gradients: call loss.backward(), on a loss of the very y that the stage "
            "returned (y.detach() has no path back to the stage)"
        )
    ends = "has a stage" if any(has_some) else "ends"
    return (
        f"{ends} without gradients: a stage receives its output's gradient, calls "
        "y.backward(y_grad) and sends its input's gradient to the previous stage"
    )
