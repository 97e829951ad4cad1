"""A pipeline schedule as data: for each device the ordered list of its actions.

    schedule[0] == [("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("B", 0, 1)]
    schedule[1] == [("F", 1, 0), ("B", 1, 0), ("F", 1, 1), ("B", 1, 1)]

A schedule has no times and no idle slots: each action starts as soon as its inputs are available
and its device is free.  A stage belongs to the device whose list contains it.  With p devices and v
chunks on each, stages are numbered along the model, 0 … p·v−1.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

KINDS = {"F": "forward", "B": "backward", "I": "input backward", "W": "weight backward"}


class Action(NamedTuple):
    """One computation on a device, a named tuple.

    kind  "F" forward; "B" the whole backward, or its two halves: "I" the gradient of the stage's
          input, which the previous stage waits for, and "W" the gradients of its weights
    stage, micro_batch  both from 0

    torch.distributed.pipelining prints it as "0F1": stage 0, forward, micro-batch 1.
    """

    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    @property
    def description(self) -> str:
        """ "stage 1's forward of micro-batch 0" """
        return f"stage {self.stage}'s {KINDS[self.kind]} of micro-batch {self.micro_batch}"


Schedule = list[list[Action]]


class IllegalSchedule(ValueError):
    """A schedule that cannot run or is incomplete. ``str(error)`` says what is wrong and where.

    rule: "form" not a schedule; "placement" one stage on two devices; "missing" or "twice" an
    action; "order" a device runs an action before one of its own that it needs; "waits" devices
    wait for each other forever.
    """

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


class CheckedSchedule(NamedTuple):
    """A schedule with each action exactly once. Its order may still be illegal."""

    schedule: Schedule
    device_of: dict[int, int]  # stage -> device
    stages: int
    micro_batches: int
    split: set[tuple[int, int]]  # (stage, micro-batch) with a split backward

    def needs(self, action: Action) -> Iterator[Action]:
        """The actions that have to end before this one can start."""
        kind, stage, micro_batch = action
        if kind == "W":
            yield Action("I", stage, micro_batch)
            return
        if kind == "F":
            if stage > 0:
                yield Action("F", stage - 1, micro_batch)
            return
        yield Action("F", stage, micro_batch)
        if stage + 1 < self.stages:
            half = "I" if (stage + 1, micro_batch) in self.split else "B"
            yield Action(half, stage + 1, micro_batch)


def check(schedule: Sequence[Iterable[Any]]) -> CheckedSchedule:
    """Check that each stage is on one device and runs every action once per micro-batch.

    Raises IllegalSchedule otherwise.  ``simulate`` finds out whether the order can run.
    """
    actions = [list(_actions(device, listed)) for device, listed in enumerate(_devices(schedule))]
    device_of: dict[int, int] = {}
    seen: dict[Action, int] = {}
    for device, listed in enumerate(actions):
        for action in listed:
            home = device_of.setdefault(action.stage, device)
            if home != device:
                raise IllegalSchedule(
                    "placement",
                    f"stage {action.stage} is on devices {home} and {device}: "
                    "a stage belongs to one device",
                )
            if action in seen:
                raise IllegalSchedule("twice", f"device {device} runs {action.description} twice")
            seen[action] = device
    if not seen:
        raise IllegalSchedule("form", "the schedule is empty: no device runs anything")
    stages = max(device_of) + 1
    micro_batches = max(action.micro_batch for action in seen) + 1
    split = {(action.stage, action.micro_batch) for action in seen if action.kind in "IW"}
    for stage in range(stages):
        if stage not in device_of:
            raise IllegalSchedule(
                "missing", f"no device runs stage {stage} of stages 0 to {stages - 1}"
            )
        for micro_batch in range(micro_batches):
            _check_complete(stage, micro_batch, seen, split)
    return CheckedSchedule(actions, device_of, stages, micro_batches, split)


def _devices(schedule: Any) -> list[Any]:
    if isinstance(schedule, dict) and set(schedule) == set(range(len(schedule))):
        return [schedule[device] for device in range(len(schedule))]
    if not isinstance(schedule, list | tuple):
        raise IllegalSchedule(
            "form", f"a schedule is a list of lists, not {type(schedule).__name__}"
        )
    return list(schedule)


def _actions(device: int, listed: Any) -> Iterator[Action]:
    if not isinstance(listed, list | tuple):
        kind = type(listed).__name__
        raise IllegalSchedule("form", f"device {device} has {kind} instead of a list of actions")
    for position, entry in enumerate(listed):
        where = f"device {device}, position {position}: {entry!r}"
        if not isinstance(entry, list | tuple) or len(entry) != 3:
            raise IllegalSchedule("form", f"{where} is not an action (kind, stage, micro_batch)")
        if not isinstance(entry[0], str) or entry[0] not in KINDS:
            raise IllegalSchedule("form", f"{where}: kind must be one of {', '.join(KINDS)}")
        try:
            stage, micro_batch = operator.index(entry[1]), operator.index(entry[2])
        except TypeError:
            raise IllegalSchedule(
                "form", f"{where}: stage and micro-batch must be integers"
            ) from None
        if min(stage, micro_batch) < 0:
            raise IllegalSchedule("form", f"{where}: stage and micro-batch must not be negative")
        yield Action(entry[0], stage, micro_batch)


def _check_complete(
    stage: int, micro_batch: int, seen: dict[Action, int], split: set[tuple[int, int]]
) -> None:
    """One forward and one backward, whole or in two halves."""
    wanted = "FIW" if (stage, micro_batch) in split else "FB"
    for kind in wanted:
        action = Action(kind, stage, micro_batch)
        if action not in seen:
            raise IllegalSchedule("missing", f"no device runs {action.description}")
    if "I" in wanted and (whole := Action("B", stage, micro_batch)) in seen:
        raise IllegalSchedule("twice", f"{whole.description} is scheduled both whole and in halves")
