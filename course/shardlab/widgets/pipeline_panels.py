"""Where the slots of pipeline schedules lie; pipeline_panels.js draws the same in a browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from shardlab.widgets.palette import MEASURED, MEMORY, WAIT, ink_on
from shardlab.widgets.scene import Mark, Rect, Text, line, text_width
from shardlab.widgets.units import format_seconds

WIDTH = 800.0
LEFT, RIGHT = 66.0, 664.0  # of the slots; devices' names stand before them
PEAK_LEFT, PEAK_RIGHT = 684.0, 760.0  # of the bars of what is in flight
HEAD = 26.0  # above a panel's rows
GAP = 12.0  # below them
KEY = 26.0  # above all
AXIS = 24.0  # below all
MOST_CHUNKS = 4
BASE = {
    "F": MEMORY["activations"],
    "B": MEMORY["gradients"],
    "I": MEMORY["gradients"],
    "W": MEMORY["optimizer"],
}
KEYS = (("F", "forward"), ("B", "backward (or its input half)"), ("W", "its weight half"))

Slot = Sequence[Any]  # kind, stage, micro-batch, start, end


@dataclass(frozen=True)
class Panel:
    """One schedule. ``slots`` None: it does not exist for these numbers."""

    title: str
    slots: Sequence[Sequence[Slot]] | None
    peaks: Sequence[int]
    v: int
    is_measured: bool = False

    @property
    def makespan(self) -> float:
        return max(listed[-1][4] for listed in self.slots or () if listed)

    @property
    def busy(self) -> list[float]:
        return [sum(slot[4] - slot[3] for slot in listed) for listed in self.slots or ()]

    @property
    def over_ideal(self) -> float:
        return self.makespan / max(self.busy) - 1

    @property
    def fraction(self) -> float:
        return 1 - sum(self.busy) / (len(self.busy) * self.makespan)

    def told(self, unit_s: float | None) -> str:
        """Its figures in a line."""
        return (
            f"bubble {format_percent(self.over_ideal)} of the ideal, "
            f"{format_percent(self.fraction)} of all time · {format_time(self.makespan, unit_s)}"
        )


def format_time(time: float, unit_s: float | None) -> str:
    """In units of the costs, or in seconds where it is known how long one is."""
    if unit_s is not None:
        return format_seconds(time * unit_s)
    return f"{time:.2f}".rstrip("0").rstrip(".")


def format_percent(share: float) -> str:
    """As JavaScript's toFixed, which rounds 6.25 up: ``6.3 %``."""
    return f"{Decimal(100 * share).quantize(Decimal('0.1'), ROUND_HALF_UP)} %"


def format_share(held: int, v: int) -> str:
    """Of chunks 1/v of a device's share each: 5.5."""
    return f"{held / v:.2f}".rstrip("0").rstrip(".")


def colors() -> dict[str, list[list[list[str]]]]:
    """kind -> for v = 1, 2, … -> for each chunk: its colour, and the ink on it."""
    return {
        kind: [
            [[shade := tint(base, chunk, v), ink_on(shade)] for chunk in range(v)]
            for v in range(1, MOST_CHUNKS + 1)
        ]
        for kind, base in BASE.items()
    }


def tint(color: str, chunk: int, v: int) -> str:
    """Later chunks are paler."""
    share = 0.5 * chunk / max(1, v - 1)
    channels = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(c + (255 - c) * share):02X}" for c in channels)


def row_height(rows: int) -> float:
    heights = ((8, 20.0), (16, 18.0), (28, 15.0), (40, 12.0))
    return next((height for most, height in heights if rows <= most), 9.0)


def bar_height(row: float) -> float:
    return row - (3 if row > 12 else 2)


def label_size(row: float) -> float:
    return 11.0 if row > 12 else row - 2


def picture(panels: Sequence[Panel], unit_s: float | None) -> tuple[list[Mark], float]:
    """Marks and height of all panels, on one scale of time and one of what is in flight."""
    row = row_height(sum(len(panel.slots) if panel.slots else 1 for panel in panels))
    drawn = [panel for panel in panels if panel.slots]
    marks: list[Mark] = _key()
    longest = max((panel.makespan for panel in drawn), default=1.0)
    most = max((held / panel.v for panel in drawn for held in panel.peaks), default=1.0)
    y = KEY
    for panel in panels:
        marks += _head(panel, y, unit_s)
        y += HEAD
        for device, slots in enumerate(panel.slots or ()):
            name = f"device {device}" if row > 12 else str(device)
            size = label_size(row)
            below = y + bar_height(row) / 2 + 0.36 * size
            marks.append(
                Text(x=LEFT - 8, y=below, text=name, size=size, anchor="end", fill="muted")
            )
            scale = (RIGHT - LEFT) / longest
            marks += _row(panel, slots, y, row, scale)
            if not panel.is_measured:
                marks += _in_flight(panel, device, y, row, most)
            y += row
        y += GAP
    marks += _axis(longest, y, unit_s)
    return marks, y + AXIS


def _key() -> list[Mark]:
    marks: list[Mark] = []
    x = LEFT
    for kind, name in KEYS:
        marks.append(Rect(x=x, y=2, width=10, height=10, fill=BASE[kind], radius=2))
        marks.append(Text(x=x + 15, y=11, text=name, size=11, fill="muted"))
        x += 15 + text_width(name, 11) + 14
    marks.append(Rect(x=x, y=2, width=10, height=10, fill=WAIT, opacity=0.3, radius=2))
    marks.append(Text(x=x + 15, y=11, text="idle", size=11, fill="muted"))
    marks.append(Text(x=PEAK_LEFT, y=11, text="in flight, at most", size=11, fill="muted"))
    return marks


def _head(panel: Panel, y: float, unit_s: float | None) -> list[Mark]:
    told = panel.told(unit_s) if panel.slots else "m does not divide into rounds of p micro-batches"
    marks: list[Mark] = []
    x = 0.0
    if panel.is_measured:
        marks.append(Rect(x=0, y=y + 6, width=10, height=10, fill=MEASURED, radius=2))
        x = 15.0
    marks += [
        Text(x=x, y=y + 16, text=panel.title, weight=600),
        Text(x=RIGHT, y=y + 16, text=told, size=11, anchor="end", fill="muted"),
    ]
    return marks


def _row(panel: Panel, slots: Sequence[Slot], y: float, row: float, scale: float) -> list[Mark]:
    stages = sorted({slot[1] for slot in slots})
    v = min(panel.v, MOST_CHUNKS)
    high = bar_height(row)
    marks: list[Mark] = [
        Rect(x=LEFT, y=y, width=panel.makespan * scale, height=high, fill=WAIT, opacity=0.22)
    ]
    for kind, stage, micro_batch, start, end in slots:
        x, width = LEFT + start * scale, (end - start) * scale
        fill = tint(BASE[kind], min(stages.index(stage), v - 1), v)
        gap = min(1.0, width / 5)
        marks.append(
            Rect(
                x=x,
                y=y,
                width=max(width - gap, 0.6),
                height=high,
                fill=fill,
                radius=min(2.0, gap * 2),
            )
        )
        label = str(micro_batch)
        if row > 12 and text_width(label, 10) < width - 4:
            marks.append(
                Text(
                    x=x + (width - gap) / 2, y=y + high / 2 + 3.6, text=label, size=10,
                    anchor="middle", fill=ink_on(fill),
                )
            )  # fmt: skip
    if panel.is_measured:
        marks.append(line(LEFT, y + high + 1, LEFT + panel.makespan * scale, y + high + 1,
                          stroke=MEASURED))  # fmt: skip
    return marks


def _in_flight(panel: Panel, device: int, y: float, row: float, most: float) -> list[Mark]:
    held = panel.peaks[device]
    high = bar_height(row)
    width = (PEAK_RIGHT - PEAK_LEFT) * held / panel.v / most
    size = label_size(row)
    below = y + high / 2 + 0.36 * size
    return [
        Rect(x=PEAK_LEFT, y=y, width=width, height=high, fill=BASE["F"], radius=2),
        Text(x=PEAK_LEFT + width + 6, y=below, text=format_share(held, panel.v), size=size),
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
    """Round numbers from 0, steps of 1, 2 or 5, about six of them."""
    step = 1e-12
    for power in range(-9, 10):
        step = next((f * 10.0**power for f in (1, 2, 5) if longest / (f * 10.0**power) <= 7), 0.0)
        if step:
            break
    return [round(index * step, 12) for index in range(int(longest / step + 1e-9) + 1)]
