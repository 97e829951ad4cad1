"""The messages between the devices of a pipeline, in one order that all devices follow.

A forward's output goes to the next stage, the gradient of a stage's input to the previous one.
Messages are ordered by the time at which their tensor is computed in the simulated timeline.  Every
device posts its sends and receives in this order, so none waits forever.  Proof: take the first
message that has not arrived.  Whatever its sender and receiver must do first depends only on
earlier messages, so both reach it.  (This holds even with blocking sends, and if messages between
two ranks pass one at a time, as with NCCL.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from shardlab.simulate.pipeline import Action, simulate


class Message(NamedTuple):
    """One tensor: "F" is an output sent to stage + 1, "B" a gradient sent to stage − 1."""

    kind: str
    stage: int  # that computed it
    micro_batch: int
    sender: int  # device
    receiver: int


def messages(schedule: Sequence[Iterable[Any]]) -> list[Message]:
    """All messages between devices, in the order in which every device posts them.

    Raises IllegalSchedule for a schedule that cannot run.
    """
    timeline = simulate(schedule)
    found: list[tuple[float, Message]] = []
    for device, slots in enumerate(timeline.slots):
        for action, _, end in slots:
            if message := message_after(action, timeline.device_of):
                found.append((end, message))
            assert device == timeline.device_of[action.stage]
    return [message for _, message in sorted(found)]


def message_after(action: Action, device_of: dict[int, int]) -> Message | None:
    """The message sent when the action has finished, if any."""
    kind, stage, micro_batch = action
    if kind == "W":
        return None
    to = stage + 1 if kind == "F" else stage - 1
    receiver = device_of.get(to)
    if receiver is None or receiver == device_of[stage]:
        return None
    return Message("F" if kind == "F" else "B", stage, micro_batch, device_of[stage], receiver)
