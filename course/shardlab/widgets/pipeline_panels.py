"""Positions of the slots of pipeline schedules; pipeline_panels.js draws the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from shardlab.display.palette import MEASURED, MEMORY, PHASES, WAIT, ink_on
from shardlab.widgets.scene import Mark, Rect, Text, line, text_width
from shardlab.widgets.units import format_seconds

WIDTH = 800.0
LEFT, RIGHT = 66.0, 664.0  # of the slots; device names are to the left
PEAK_LEFT, PEAK_RIGHT = 684.0, 760.0  # of the in-flight bars
HEAD = 26.0  # above a panel's rows
GAP = 12.0  # below them
LEGEND_HEIGHT = 26.0  # above all panels
AXIS_HEIGHT = 24.0  # below all panels
MAX_CHUNKS = 4
MAX_SLOWER = 2.0  # a run that is slower still gets a scale of its own
BASE_COLORS = {
    "F": PHASES["forward"],
    "B": PHASES["backward"],
    "I": PHASES["backward"],
    "W": PHASES["weights"],
}
IN_FLIGHT = MEMORY["activations"]
LEGEND = (("F", "forward"), ("B", "backward (or input gradient)"), ("W", "weight gradient"))

Slot = Sequence[Any]  # kind, stage, micro-batch, start, end


@dataclass(frozen=True)
class Panel:
    """One schedule. ``slots`` is None if it does not exist for these numbers."""

    title: str
    slots: Sequence[Sequence[Slot]] | None
    peaks: Sequence[int]
    v: int
    is_measured: bool = False

    @property
    def makespan(self) -> float:
        return max(device_slots[-1][4] for device_slots in self.slots or () if device_slots)

    @property
    def busy(self) -> list[float]:
        return [
            sum(slot[4] - slot[3] for slot in device_slots) for device_slots in self.slots or ()
        ]

    @property
    def over_ideal(self) -> float:
        return self.makespan / max(self.busy) - 1

    @property
    def fraction(self) -> float:
        return 1 - sum(self.busy) / (len(self.busy) * self.makespan)

    def figures(self, unit_s: float | None) -> str:
        """Bubble and time in one line."""
        return (
            f"bubble {format_percent(self.over_ideal)} of ideal time, "
            f"{format_percent(self.fraction)} of total time · {format_time(self.makespan, unit_s)}"
        )


def format_time(time: float, unit_s: float | None) -> str:
    """Formats a time in units of the costs, or in seconds if the length of a unit is known."""
    if unit_s is not None:
        return format_seconds(time * unit_s)
    return f"{time:.2f}".rstrip("0").rstrip(".")


def format_percent(share: float) -> str:
    """Like JavaScript's toFixed, which rounds 6.25 up: ``6.3%``."""
    return f"{Decimal(100 * share).quantize(Decimal('0.1'), ROUND_HALF_UP)}%"


def format_share(count: int, v: int) -> str:
    """In-flight chunks, each counted as 1/v: 11 chunks with v = 2 are 5.5."""
    return f"{count / v:.2f}".rstrip("0").rstrip(".")


def colors() -> dict[str, list[list[list[str]]]]:
    """kind -> for v = 1, 2, … -> for each chunk: its color, and the text color on it."""
    return {
        kind: [
            [[shade := tint(base, chunk, v), ink_on(shade)] for chunk in range(v)]
            for v in range(1, MAX_CHUNKS + 1)
        ]
        for kind, base in BASE_COLORS.items()
    }


def tint(color: str, chunk: int, v: int) -> str:
    """Later chunks are paler."""
    share = 0.5 * chunk / max(1, v - 1)
    channels = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(c + (255 - c) * share):02X}" for c in channels)


def row_height(rows: int) -> float:
    heights = ((8, 20.0), (16, 18.0), (28, 15.0), (40, 12.0))
    return next((height for max_rows, height in heights if rows <= max_rows), 9.0)


def bar_height(row: float) -> float:
    return row - (3 if row > 12 else 2)


def label_size(row: float) -> float:
    return 11.0 if row >= 12 else row - 1


def picture(panels: Sequence[Panel], unit_s: float | None) -> tuple[list[Mark], float]:
    """Marks and height of all panels, on one scale of time and one of in-flight counts."""
    row = row_height(sum(len(panel.slots) if panel.slots else 1 for panel in panels))
    drawn = [panel for panel in panels if panel.slots]
    marks: list[Mark] = _legend()
    slower = [_slower(panel, drawn) for panel in panels]
    shown = [panel.makespan / by for panel, by in zip(panels, slower, strict=True) if panel.slots]
    longest = max(shown, default=1.0)
    max_in_flight = max((peak / panel.v for panel in drawn for peak in panel.peaks), default=1.0)
    y = LEGEND_HEIGHT
    for panel, by in zip(panels, slower, strict=True):
        marks += _head(panel, y, unit_s, by)
        y += HEAD
        for device, slots in enumerate(panel.slots or ()):
            name = f"device {device}" if row > 12 else str(device)
            size = label_size(row)
            below = y + bar_height(row) / 2 + 0.36 * size
            marks.append(
                Text(x=LEFT - 8, y=below, text=name, size=size, anchor="end", fill="muted")
            )
            scale = (RIGHT - LEFT) / longest / by
            marks += _row(panel, slots, y, row, scale)
            if not panel.is_measured:
                marks += _in_flight(panel, device, y, row, max_in_flight)
            y += row
        y += GAP
    marks += _axis(longest, y, unit_s)
    return marks, y + AXIS_HEIGHT


def _legend() -> list[Mark]:
    marks: list[Mark] = []
    x = LEFT
    for kind, name in LEGEND:
        marks.append(Rect(x=x, y=2, width=10, height=10, fill=BASE_COLORS[kind], radius=2))
        marks.append(Text(x=x + 15, y=11, text=name, size=11, fill="muted"))
        x += 15 + text_width(name, 11) + 14
    marks.append(Rect(x=x, y=2, width=10, height=10, fill=WAIT, opacity=0.3, radius=2))
    marks.append(Text(x=x + 15, y=11, text="idle", size=11, fill="muted"))
    marks.append(Text(x=PEAK_LEFT, y=11, text="in flight (peak)", size=11, fill="muted"))
    return marks


def _slower(panel: Panel, drawn: Sequence[Panel]) -> float:
    """How many times smaller a run is drawn: 1, unless a busy machine made it far slower than the
    simulations, which would then be too small to read."""
    simulated = [each.makespan for each in drawn if not each.is_measured]
    if not panel.is_measured or panel.makespan <= MAX_SLOWER * max(simulated):
        return 1.0
    return math.ceil(10 * panel.makespan / max(simulated)) / 10


def _head(panel: Panel, y: float, unit_s: float | None, slower: float) -> list[Mark]:
    text = (
        panel.figures(unit_s) if panel.slots else "m micro-batches do not divide into equal rounds"
    )
    marks: list[Mark] = []
    scale = f" (drawn at 1 : {slower:g})" if slower > 1 else ""
    x = 0.0
    if panel.is_measured:
        marks.append(Rect(x=0, y=y + 6, width=10, height=10, fill=MEASURED, radius=2))
        x = 15.0
    marks += [
        Text(x=x, y=y + 16, text=panel.title + scale, weight=600),
        Text(x=RIGHT, y=y + 16, text=text, size=11, anchor="end", fill="muted"),
    ]
    return marks


def _row(panel: Panel, slots: Sequence[Slot], y: float, row: float, scale: float) -> list[Mark]:
    stages = sorted({slot[1] for slot in slots})
    v = min(panel.v, MAX_CHUNKS)
    height = bar_height(row)
    marks: list[Mark] = [
        Rect(x=LEFT, y=y, width=panel.makespan * scale, height=height, fill=WAIT, opacity=0.22)
    ]
    labels: list[Mark] = []  # above all actions
    for index, (kind, stage, micro_batch, start, end) in enumerate(slots):
        x, width = LEFT + start * scale, (end - start) * scale
        fill = tint(BASE_COLORS[kind], min(stages.index(stage), v - 1), v)
        gap = min(1.0, width / 5)
        marks.append(
            Rect(
                x=x,
                y=y,
                width=max(width - gap, 0.6),
                height=height,
                fill=fill,
                stroke="none" if fill == BASE_COLORS[kind] else BASE_COLORS[kind],
                radius=min(2.0, gap * 2),
            )
        )
        label = str(micro_batch)
        # In a row of equal actions, every fourth number may be wider than its box.
        neighbors = {each[0] for each in slots[max(index - 1, 0) : index + 2]}
        room = 4 * width if micro_batch % 4 == 0 and neighbors == {kind} else width
        if row > 12 and text_width(label, 11) < room - 1:
            labels.append(
                Text(
                    x=x + (width - gap) / 2, y=y + height / 2 + 4, text=label, size=11,
                    anchor="middle", fill=ink_on(fill),
                )
            )  # fmt: skip
    marks += labels
    if panel.is_measured:
        marks.append(line(LEFT, y + height + 1, LEFT + panel.makespan * scale, y + height + 1,
                          stroke=MEASURED))  # fmt: skip
    return marks


def _in_flight(panel: Panel, device: int, y: float, row: float, max_in_flight: float) -> list[Mark]:
    peak = panel.peaks[device]
    height = bar_height(row)
    width = (PEAK_RIGHT - PEAK_LEFT) * peak / panel.v / max_in_flight
    size = label_size(row)
    below = y + height / 2 + 0.36 * size
    return [
        Rect(x=PEAK_LEFT, y=y, width=width, height=height, fill=IN_FLIGHT, radius=2),
        Text(x=PEAK_LEFT + width + 6, y=below, text=format_share(peak, panel.v), size=size),
    ]


def _axis(longest: float, y: float, unit_s: float | None) -> list[Mark]:
    y -= GAP - 4
    marks: list[Mark] = [line(LEFT, y, RIGHT, y)]
    for tick in ticks(longest):
        x = LEFT + (RIGHT - LEFT) * tick / longest
        marks.append(line(x, y, x, y + 4))
        text = format_time(tick, unit_s)
        marks.append(Text(x=x, y=y + 16, text=text, size=11, anchor="middle", fill="muted"))
    return marks


def ticks(longest: float) -> list[float]:
    """About six round numbers from 0, in steps of 1, 2 or 5."""
    step = 1e-12
    for power in range(-9, 10):
        step = next((f * 10.0**power for f in (1, 2, 5) if longest / (f * 10.0**power) <= 7), 0.0)
        if step:
            break
    return [round(index * step, 12) for index in range(int(longest / step + 1e-9) + 1)]
