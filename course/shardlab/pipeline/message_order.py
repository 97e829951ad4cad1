"""What devices of a pipeline send one another, in one order that all of them keep to.

A forward's output goes to the next stage, the gradient of a stage's input to the one before.  The
order is that of the simulated timeline: by when each message's tensor is made.  Every device posts
the messages that it sends or receives in this order, and that is why none waits for ever: of all
messages not yet through, take the first.  What its sender still has to compute needs earlier
messages alone, and so does all that its receiver has to do before it.  Both come to it.  (It would
even go without asynchronous sends, and it holds where messages between two ranks pass one after the
other, as over NCCL.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from shardlab.simulate.pipeline import Action, simulate


class Message(NamedTuple):
    """One tensor: "F" an output on its way to stage + 1, "B" a gradient to stage − 1."""

    kind: str
    stage: int  # that made it
    micro_batch: int
    sender: int  # device
    receiver: int


def messages(schedule: Sequence[Iterable[Any]]) -> list[Message]:
    """All that travel between devices, in the order in which every device posts them.

    Raises Illegal.
    """
    timeline = simulate(schedule)
    found: list[tuple[float, Message]] = []
    for device, slots in enumerate(timeline.slots):
        for action, _, end in slots:
            if message := made_by(action, timeline.device_of):
                found.append((end, message))
            assert device == timeline.device_of[action.stage]
    return [message for _, message in sorted(found)]


def made_by(action: Action, device_of: dict[int, int]) -> Message | None:
    """The message that goes out when the action has ended, if one does."""
    kind, stage, micro_batch = action
    if kind == "W":
        return None
    to = stage + 1 if kind == "F" else stage - 1
    receiver = device_of.get(to)
    if receiver is None or receiver == device_of[stage]:
        return None
    return Message("F" if kind == "F" else "B", stage, micro_batch, device_of[stage], receiver)
