"""How long a schedule takes, how long devices idle, and how many activations wait for backward.

Two conventions for the bubble are in use, and a figure is worth nothing without its own:

    over the ideal   idle time over the time that the work alone takes: (p−1)/m for GPipe and 1F1B
    fraction         idle time over all the time: (p−1)/(m+p−1) for the same two

(Narayanan et al., "Efficient large-scale language model training on GPU clusters using
Megatron-LM", arXiv 2104.04473, section 2.2, has the first; Huang et al., "GPipe", arXiv 1811.06965,
section 2.3, the second, as O((K−1)/(M+K−1)).)  A third counts from a device's own first action to
its own last: see ``PipelineTimeline.span_bubble``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardlab.simulate.pipeline.schedule import Action, Checked, Illegal, check

PerStage = float | Sequence[float]


@dataclass(frozen=True)
class Costs:
    """Time of each action, in any unit, the same for all stages or one number for each stage.

    A whole backward takes backward_input + backward_weight; for matrix products each half costs
    what forward does.  send: between the end of an action and the start of the one that needs it on
    another device; both devices may compute meanwhile.
    """

    forward: PerStage = 1.0
    backward_input: PerStage = 1.0
    backward_weight: PerStage = 1.0
    send: float = 0.0

    def of(self, action: Action) -> float:
        """Raises ValueError for a stage that has no cost, or one that is not above 0."""
        forward = self._at("forward", action)
        inputs, weights = self._at("backward_input", action), self._at("backward_weight", action)
        return {"F": forward, "I": inputs, "W": weights, "B": inputs + weights}[action.kind]

    def in_chunks(self, v: int) -> Costs:
        """Of one chunk, where these are of a device's whole share and it is cut in v."""
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
            raise ValueError(f"{name}={value}: an action takes time, above 0")
        return float(value)


class Slot(NamedTuple):
    """When a device does an action, in the unit of the costs."""

    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class PipelineTimeline:
    """When everything happens if each action begins as early as it can."""

    slots: tuple[tuple[Slot, ...], ...]  # by device, in order
    device_of: dict[int, int]  # stage -> device
    in_flight: dict[int, int]  # stage -> the most micro-batches whose activations it holds at once
    peak_in_flight: tuple[int, ...]  # by device, its stages' together

    @property
    def makespan(self) -> float:
        """Time from the first action's start to the last one's end."""
        return max(slots[-1].end for slots in self.slots if slots)

    @property
    def busy(self) -> tuple[float, ...]:
        """By device, the time it computes."""
        return tuple(sum(slot.end - slot.start for slot in slots) for slots in self.slots)

    @property
    def idle(self) -> tuple[float, ...]:
        """By device, the rest of the makespan: its bubble."""
        return tuple(self.makespan - busy for busy in self.busy)

    @property
    def bubble_over_ideal(self) -> float:
        """(makespan − ideal) / ideal, where the ideal is the busiest device's work alone."""
        return self.makespan / max(self.busy) - 1

    @property
    def bubble_fraction(self) -> float:
        """The idle share of all devices' time."""
        return sum(self.idle) / (len(self.slots) * self.makespan)

    @property
    def span_bubble(self) -> float:
        """Over the ideal, of the longest time from a device's own first start to its own last end.

        The zero-bubble papers count like this: a device that begins later may end later, since each
        updates its own weights and goes on with the next step (Qi et al., "Zero bubble pipeline
        parallelism", arXiv 2401.10241, sections 4 and 5).
        """
        return (
            max(slots[-1].end - slots[0].start for slots in self.slots if slots) / max(self.busy)
            - 1
        )

    def start_of(self, action: tuple[str, int, int]) -> float:
        return self._find(action).start

    def end_of(self, action: tuple[str, int, int]) -> float:
        return self._find(action).end

    def _find(self, action: tuple[str, int, int]) -> Slot:
        device = self.device_of[action[1]]
        return next(slot for slot in self.slots[device] if slot.action == action)


def simulate(schedule: Sequence[Iterable[Any]], costs: Costs | None = None) -> PipelineTimeline:
    """The timeline of a schedule, each action as early as its needs and its device allow.

    Activations are in flight from a forward's start to the end of the backward that needs them, of
    "W" where it is split.  (Some of them are free after "I" already: that is not counted.)

    Raises Illegal, which names what is missing, twice, or waits forever, and ValueError for costs
    that cannot be.
    """
    checked = check(schedule)
    costs = costs or Costs()
    if not costs.send >= 0:
        raise ValueError(f"send={costs.send}: not below 0")
    end: dict[Action, float] = {}
    slots: list[list[Slot]] = [[] for _ in checked.schedule]
    moved = True
    while moved:
        moved = False
        for device, actions in enumerate(checked.schedule):
            while len(slots[device]) < len(actions):
                action = actions[len(slots[device])]
                needs = list(checked.needs(action))
                if any(needed not in end for needed in needs):
                    break
                start = slots[device][-1].end if slots[device] else 0.0
                for needed in needs:
                    travels = checked.device_of[needed.stage] != device
                    start = max(start, end[needed] + (costs.send if travels else 0.0))
                end[action] = start + costs.of(action)
                slots[device].append(Slot(action, start, end[action]))
                moved = True
    if len(end) < sum(map(len, checked.schedule)):
        raise _stuck(checked, end, [len(done) for done in slots])
    in_flight, peaks = _count_in_flight(checked)
    return PipelineTimeline(tuple(map(tuple, slots)), checked.device_of, in_flight, peaks)


def _count_in_flight(checked: Checked) -> tuple[dict[int, int], tuple[int, ...]]:
    """A device does one thing after the other, so that its order alone tells."""
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


def _stuck(checked: Checked, end: dict[Action, float], done: list[int]) -> Illegal:
    """Why no device goes on: its own order, else a circle of devices that wait for one another."""
    waits: dict[int, tuple[Action, Action]] = {}  # device -> its next action, and what that needs
    for device, actions in enumerate(checked.schedule):
        if done[device] == len(actions):
            continue
        action = actions[done[device]]
        needed = next(need for need in checked.needs(action) if need not in end)
        waits[device] = action, needed
        if checked.device_of[needed.stage] == device:
            return Illegal(
                "order",
                f"{action.words} needs {_shortly(needed, action)} first: device {device}, "
                "which has it further down its list, waits forever",
            )
    device = next(iter(waits))
    path = [device]
    while (device := checked.device_of[waits[path[-1]][1].stage]) not in path:
        path.append(device)
    circle = path[path.index(device) :]
    action, needed = waits[circle[0]]
    chain = "; ".join(
        f"device {device} waits in {waits[device][0]} for {waits[device][1]} of device "
        f"{checked.device_of[waits[device][1].stage]}"
        for device in circle
    )
    return Illegal(
        "waits",
        f"{action.words} needs {_shortly(needed, action)} first: device {circle[0]} waits forever "
        f"({chain})",
    )


def _shortly(needed: Action, action: Action) -> str:
    """Without the micro-batch where it is the same one."""
    assert needed.micro_batch == action.micro_batch  # nothing depends on another micro-batch
    return (
        needed.words.partition(" of ")[0]
        if needed.stage != action.stage
        else "its " + (needed.words.partition("'s ")[2].partition(" of ")[0])
    )
