"""The rows of memory bars: what is in them, where they lie, and their picture standing still."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardlab.estimate.memory import ModelStates, model_states
from shardlab.widgets.palette import ERROR, MEMORY, PREDICTED, ink_on
from shardlab.widgets.scene import Mark, Path, Rect, Text, line, text_width
from shardlab.widgets.units import format_bytes, format_si

WIDTH = 800.0
LEFT = 96.0  # of the bars: row names stand before them
RIGHT = 640.0  # of the bars: totals and verdicts stand behind them
ROW = 30.0
STAGES = (0, 1, 2, 3)
UNITS: dict[str, Callable[[float], str]] = {
    "GB": partial(format_si, unit="B"),
    "GiB": format_bytes,
}
MOST_RANK_ROWS = 64


@dataclass(frozen=True)
class Bar:
    """One row. parts: (category, bytes), from the left."""

    label: str
    parts: tuple[tuple[str, float], ...]
    y: float
    height: float
    chosen: bool = True

    @property
    def bytes(self) -> float:
        return sum(size for _, size in self.parts)


def states_at(settings: Mapping[str, Any], stage: int) -> ModelStates:
    """Predicted bytes at a stage, offloading what that stage can."""
    return model_states(settings["parameters"], **formula_keywords(settings, stage))


def formula_keywords(settings: Mapping[str, Any], stage: int) -> dict[str, Any]:
    """What the formula takes."""
    wish = settings["offload"]
    return {
        "stage": stage,
        "world_size": settings["worldSize"],
        "precision": settings["precision"],
        "optimizer": settings["optimizer"],
        "offload_optimizer": stage >= 1 and wish in ("optimizer", "both"),
        "offload_parameters": stage == 3 and wish in ("parameters", "both"),
    }


class MemoryBarsLayout:
    """Stages, measured ranks, host, axis, key of colours."""

    def __init__(
        self, capacity_bytes: float | None, measured: dict[str, NDArray[np.float64]] | None
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.measured = measured
        self.ranks = 0 if measured is None else len(next(iter(measured.values())))
        shown = min(self.ranks, MOST_RANK_ROWS)
        self.measured_row = max(4.0, min(22.0, 240.0 / max(shown, 1)))
        self.stages_y = 44.0
        self.measured_y = self.stages_y + len(STAGES) * ROW + 34
        after = self.measured_y + shown * self.measured_row + 34 if shown else self.measured_y
        self.host_y = after
        self.axis_y = self.host_y + ROW + 6
        self.height = self.axis_y + 56

    def measured_bars(self) -> list[Bar]:
        """A row for each rank; of very many ranks, the fullest of each few."""
        if self.measured is None:
            return []
        totals = sum(self.measured.values())
        shown = min(self.ranks, MOST_RANK_ROWS)
        bars = []
        for row, ranks in enumerate(np.array_split(np.arange(self.ranks), shown)):
            rank = int(max(ranks, key=lambda r: totals[r]))  # type: ignore[index]
            parts = tuple((name, float(column[rank])) for name, column in self.measured.items())
            y = self.measured_y + row * self.measured_row
            bars.append(Bar(f"rank {rank}", parts, y, self.measured_row))
        return bars

    def stage_bars(self, settings: Mapping[str, Any]) -> list[Bar]:
        return [
            Bar(
                f"stage {stage}",
                tuple(states_at(settings, stage).device.items()),
                self.stages_y + stage * ROW,
                ROW,
                chosen=stage == settings["stage"],
            )
            for stage in STAGES
        ]

    def host_bar(self, settings: Mapping[str, Any]) -> Bar:
        parts = tuple(states_at(settings, settings["stage"]).host.items())
        return Bar("host", parts, self.host_y, ROW)

    def scale_bytes(self, settings: Mapping[str, Any]) -> float:
        """What the axis ends at: all is on it but other stages, which may be cut off."""
        chosen = [bar.bytes for bar in self.stage_bars(settings) if bar.chosen]
        others = [bar.bytes for bar in [*self.measured_bars(), self.host_bar(settings)]]
        return 1.04 * max(*chosen, *others, self.capacity_bytes or 0)

    # ---- the picture standing still ----

    def marks(self, settings: Mapping[str, Any]) -> list[Mark]:
        most = self.scale_bytes(settings)
        told = UNITS[settings["unit"]]
        marks = self._axis(most, settings["unit"])
        n = settings["worldSize"]
        each = "the only rank's device" if n == 1 else f"each of {n} ranks' devices"
        marks.append(self._heading(self.stages_y - 18, f"predicted, {each}, by stage"))
        for bar in self.stage_bars(settings):
            marks += self._bar(bar, most, told)
        if self.measured is not None:
            marks.append(self._heading(self.measured_y, "measured, by rank"))
            predicted = states_at(settings, settings["stage"]).device_bytes
            x = LEFT + min(1.0, predicted / most) * (RIGHT - LEFT)
            for bar in self.measured_bars():
                marks += self._bar(bar, most, told)
            height = len(self.measured_bars()) * self.measured_row
            marks.append(
                Rect(x=x - 1.5, y=self.measured_y - 2, width=3, height=height + 4, fill=PREDICTED)
            )
        marks.append(self._heading(self.host_y, "on the host, for each rank"))
        marks += self._bar(self.host_bar(settings), most, told)
        marks += self._capacity(most, told)
        return marks + self.legend()

    def _heading(self, y: float, text: str) -> Text:
        return Text(x=LEFT, y=y - 8, text=text, fill="muted")

    def _bar(self, bar: Bar, most: float, told: Any) -> list[Mark]:
        per_byte = (RIGHT - LEFT) / most
        thick = bar.height - (8 if bar.height >= 20 else 3 if bar.height >= 9 else 1)
        top = bar.y + (bar.height - thick) / 2
        faint = 1.0 if bar.chosen else 0.45
        marks: list[Mark] = []
        if bar.height >= 10:
            weight = 700 if bar.chosen and bar.label.startswith("stage") else 400
            label = f"▶ {bar.label}" if weight == 700 else bar.label
            middle = bar.y + bar.height / 2 + 4
            marks.append(Text(x=LEFT - 10, y=middle, text=label, anchor="end", weight=weight))
        x = LEFT
        for category, size in bar.parts:
            width = min(size * per_byte, RIGHT - x)
            if width <= 0:
                continue
            color = MEMORY[category]
            marks.append(Rect(x=x, y=top, width=width, height=thick, fill=color, opacity=faint))
            text = told(size)
            if thick >= 14 and text_width(text, 11) + 8 <= width:
                marks.append(
                    Text(
                        x=x + width / 2, y=top + thick / 2 + 4, text=text, size=11,
                        anchor="middle", fill=ink_on(color) if bar.chosen else "text",
                    )
                )  # fmt: skip
            x += width
        if bar.chosen and self.capacity_bytes is not None and bar.label != "host":
            edge = LEFT + self.capacity_bytes * per_byte
            if x > edge:  # what is too much
                marks.append(
                    Rect(
                        x=edge, y=top - 1, width=x - edge, height=thick + 2,
                        stroke=ERROR, stroke_width=2.5,
                    )
                )  # fmt: skip
        if bar.bytes > most:
            marks.append(Path(d=_zigzag(RIGHT, top, thick), stroke="surface", stroke_width=3))
        if bar.height >= 10:
            y = bar.y + bar.height / 2 + 4
            note = self._verdict(bar, told)
            marks.append(Text(x=RIGHT + 12, y=y, text=note, size=11))
        return marks

    def _verdict(self, bar: Bar, told: Any) -> str:
        if bar.label == "host" and not bar.bytes:
            return "nothing"
        if bar.label == "host" or self.capacity_bytes is None:
            return str(told(bar.bytes))
        fits = bar.bytes <= self.capacity_bytes
        return f"{told(bar.bytes)} {'✓ fits' if fits else '✗ does not fit'}"

    def _capacity(self, most: float, told: Any) -> list[Mark]:
        if self.capacity_bytes is None:
            return []
        x = LEFT + self.capacity_bytes / most * (RIGHT - LEFT)
        bottom = self.host_y - 26
        d = f"M{x:.2f} {self.stages_y - 6}L{x:.2f} {bottom}"
        label = f"capacity {told(self.capacity_bytes)}"
        anchor = "end" if x > LEFT + 160 else "start"
        at = x + (-6 if anchor == "end" else 6)
        return [
            Path(d=d, stroke="text", stroke_width=2, dash="6 4"),
            Text(x=at, y=self.stages_y - 8, text=label, size=11, anchor=anchor, weight=600),
        ]

    def _axis(self, most: float, unit: str) -> list[Mark]:
        marks: list[Mark] = []
        for tick in ticks(most, 5, decimal=unit == "GB"):
            x = LEFT + tick / most * (RIGHT - LEFT)
            marks.append(line(x, self.stages_y - 4, x, self.axis_y, opacity=0.5))
            text = UNITS[unit](tick) if tick else "0"
            marks.append(
                Text(x=x, y=self.axis_y + 14, text=text, size=11, anchor="middle", fill="muted")
            )
        return marks

    def legend(self) -> list[Mark]:
        """The key of colours: the categories that can be on show."""
        names = ["parameters", "gradients", "optimizer"]
        names += [n for n, sizes in (self.measured or {}).items() if n not in names and sizes.any()]
        marks: list[Mark] = []
        x, y = LEFT, self.axis_y + 32
        for name in names:
            words = "optimizer, with fp32 masters" if name == "optimizer" else name
            marks.append(Rect(x=x, y=y, width=10, height=10, fill=MEMORY[name], radius=2))
            marks.append(Text(x=x + 15, y=y + 9, text=words, size=11, fill="muted"))
            x += 15 + text_width(words, 10) + 14
        if self.measured is not None:
            marks.append(Rect(x=x, y=y - 2, width=3, height=14, fill=PREDICTED))
            marks.append(Text(x=x + 9, y=y + 9, text="predicted states", size=11, fill="muted"))
        return marks


def ticks(most: float, count: int, *, decimal: bool) -> list[float]:
    """From 0 to ``most`` in at most ``count`` steps: round ones, or powers of two."""
    rough = most / count
    if decimal:
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    else:
        step = 2.0 ** math.ceil(math.log2(rough))
    return [index * step for index in range(int(most / step) + 1)]


def _zigzag(x: float, top: float, height: float) -> str:
    """A break through a bar's end: it goes on beyond the axis."""
    quarter = height / 4
    points = [(x - 6 + 4 * (index % 2), top + index * quarter) for index in range(5)]
    return "M" + "L".join(f"{px:.2f} {py:.2f}" for px, py in points)
