"""Simulates how long a schedule takes, how long devices idle, and how many activations they hold.

The bubble is reported in two conventions; always state which:

    over ideal   idle time / time of the work alone: (p−1)/m for GPipe and 1F1B
    fraction     idle time / total time: (p−1)/(m+p−1) for the same two

The first is in Narayanan et al., "Efficient large-scale language model training on GPU clusters
using Megatron-LM", arXiv 2104.04473, section 2.2, the second in Huang et al., "GPipe", arXiv
1811.06965, section 2.3, as O((K−1)/(M+K−1)).  A third measures each device from its first action to
its last: see ``PipelineTimeline.span_bubble``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardlab.simulate.pipeline.schedule import Action, CheckedSchedule, IllegalSchedule, check

PerStage = float | Sequence[float]


@dataclass(frozen=True)
class Costs:
    """Time of each action, in any unit: one number for all stages or a number per stage.

    A whole backward takes backward_input + backward_weight; for matrix products each half costs as
    much as forward.  send: time from the end of an action to the start of the action on another
    device that needs it; both devices may compute in that time.
    """

    forward: PerStage = 1.0
    backward_input: PerStage = 1.0
    backward_weight: PerStage = 1.0
    send: float = 0.0

    def of(self, action: Action) -> float:
        """Raises ValueError for a stage without a cost, or a cost that is not above 0."""
        forward = self._at("forward", action)
        inputs, weights = self._at("backward_input", action), self._at("backward_weight", action)
        return {"F": forward, "I": inputs, "W": weights, "B": inputs + weights}[action.kind]

    def in_chunks(self, v: int) -> Costs:
        """The costs of one of v chunks, if these are the costs of a device's whole part."""
        forward, inputs, weights = (
            value / v if isinstance(value, int | float) else [each / v for each in value]
            for value in (self.forward, self.backward_input, self.backward_weight)
        )
        return Costs(forward, inputs, weights, self.send)

    def _at(self, name: str, action: Action) -> float:
        value = getattr(self, name)
        if not isinstance(value, int | float):
            if action.stage >= len(value):
                raise ValueError(f"{name} has {len(value)} costs, none for stage {action.stage}")
            value = value[action.stage]
        if not value > 0:
            raise ValueError(f"{name}={value}: must be above 0")
        return float(value)


class Slot(NamedTuple):
    """When a device runs an action, in the unit of the costs."""

    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class PipelineTimeline:
    """When each action runs if it starts as early as possible."""

    slots: tuple[tuple[Slot, ...], ...]  # by device, in order
    device_of: dict[int, int]  # stage -> device
    in_flight: dict[int, int]  # stage -> the most micro-batches whose activations it holds
    peak_in_flight: tuple[int, ...]  # by device, over all its stages

    @property
    def makespan(self) -> float:
        """Time from the start of the first action to the end of the last."""
        return max(slots[-1].end for slots in self.slots if slots)

    @property
    def busy(self) -> tuple[float, ...]:
        """Compute time by device."""
        return tuple(sum(slot.end - slot.start for slot in slots) for slots in self.slots)

    @property
    def idle(self) -> tuple[float, ...]:
        """Idle time by device, the rest of the makespan: its bubble."""
        return tuple(self.makespan - busy for busy in self.busy)

    @property
    def bubble_over_ideal(self) -> float:
        """(makespan − ideal) / ideal, where ideal is the compute time of the busiest device."""
        return self.makespan / max(self.busy) - 1

    @property
    def bubble_fraction(self) -> float:
        """The fraction of all devices' time that is idle."""
        return sum(self.idle) / (len(self.slots) * self.makespan)

    @property
    def span_bubble(self) -> float:
        """Bubble over ideal, but of the longest span from a device's first start to its last end.

        The zero-bubble papers use this: a device that starts later may end later, since each
        updates its own weights and continues with the next step (Qi et al., "Zero bubble pipeline
        parallelism", arXiv 2401.10241, sections 4 and 5).
        """
        return (
            max(slots[-1].end - slots[0].start for slots in self.slots if slots) / max(self.busy)
            - 1
        )


def simulate(schedule: Sequence[Iterable[Any]], costs: Costs | None = None) -> PipelineTimeline:
    """The timeline of a schedule, with each action as early as its inputs and its device allow.

    Activations are in flight from the start of a forward to the end of its backward, or of "W" if
    the backward is split.  (Some could be freed after "I"; this is not modeled.)

    Raises IllegalSchedule, which names the action that is missing, duplicated or waits forever, and
    ValueError for invalid costs.
    """
    checked = check(schedule)
    costs = costs or Costs()
    if not costs.send >= 0:
        raise ValueError(f"send={costs.send}: must not be below 0")
    end: dict[Action, float] = {}
    slots: list[list[Slot]] = [[] for _ in checked.schedule]
    progress = True
    while progress:
        progress = False
        for device, actions in enumerate(checked.schedule):
            while len(slots[device]) < len(actions):
                action = actions[len(slots[device])]
                needs = list(checked.needs(action))
                if any(needed not in end for needed in needs):
                    break
                start = slots[device][-1].end if slots[device] else 0.0
                for needed in needs:
                    is_remote = checked.device_of[needed.stage] != device
                    start = max(start, end[needed] + (costs.send if is_remote else 0.0))
                end[action] = start + costs.of(action)
                slots[device].append(Slot(action, start, end[action]))
                progress = True
    if len(end) < sum(map(len, checked.schedule)):
        raise _explain_deadlock(checked, end, [len(done) for done in slots])
    in_flight, peaks = _count_in_flight(checked)
    return PipelineTimeline(tuple(map(tuple, slots)), checked.device_of, in_flight, peaks)


def _count_in_flight(checked: CheckedSchedule) -> tuple[dict[int, int], tuple[int, ...]]:
    """(By stage, by device): peak numbers, counted in the order of each device's list."""
    peak_of_stage = dict.fromkeys(sorted(checked.device_of), 0)
    peaks = []
    for actions in checked.schedule:
        held = dict.fromkeys(peak_of_stage, 0)
        peak = 0
        for kind, stage, _ in actions:
            if kind == "F":
                held[stage] += 1
                peak_of_stage[stage] = max(peak_of_stage[stage], held[stage])
                peak = max(peak, sum(held.values()))
            elif kind in "BW":
                held[stage] -= 1
        peaks.append(peak)
    return peak_of_stage, tuple(peaks)


def _explain_deadlock(
    checked: CheckedSchedule, end: dict[Action, float], done: list[int]
) -> IllegalSchedule:
    """Why no device can continue: a device's own order, or a cycle of devices that wait."""
    waits: dict[int, tuple[Action, Action]] = {}  # device -> its next action, the one it needs
    for device, actions in enumerate(checked.schedule):
        if done[device] == len(actions):
            continue
        action = actions[done[device]]
        needed = next(need for need in checked.needs(action) if need not in end)
        waits[device] = action, needed
        if checked.device_of[needed.stage] == device:
            return IllegalSchedule(
                "order",
                f"{action.description} needs {_short_description(needed, action)} first: "
                f"device {device} lists it later and waits forever",
            )
    device = next(iter(waits))
    path = [device]
    while (device := checked.device_of[waits[path[-1]][1].stage]) not in path:
        path.append(device)
    cycle = path[path.index(device) :]
    action, needed = waits[cycle[0]]
    chain = "; ".join(
        f"device {device} waits in {waits[device][0]} for {waits[device][1]} of device "
        f"{checked.device_of[waits[device][1].stage]}"
        for device in cycle
    )
    return IllegalSchedule(
        "waits",
        f"{action.description} needs {_short_description(needed, action)} first: "
        f"device {cycle[0]} waits forever ({chain})",
    )


def _short_description(needed: Action, action: Action) -> str:
    """The needed action without its micro-batch, which is the same as the action's."""
    assert needed.micro_batch == action.micro_batch  # nothing depends on another micro-batch
    return (
        needed.description.partition(" of ")[0]
        if needed.stage != action.stage
        else "its " + (needed.description.partition("'s ")[2].partition(" of ")[0])
    )
