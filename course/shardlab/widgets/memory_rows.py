"""The rows of the memory bars: their contents, positions and static picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardlab.display.palette import ERROR, MEMORY, PREDICTED, ink_on
from shardlab.estimate.memory import ModelStates, model_states
from shardlab.widgets.scene import Mark, Path, Rect, Text, line, text_width
from shardlab.widgets.units import format_bytes, format_si

WIDTH = 800.0
LEFT = 96.0  # of the bars; row names are to the left
RIGHT = 640.0  # of the bars; totals and verdicts are to the right
ROW = 30.0
STAGES = (0, 1, 2, 3)
UNITS: dict[str, Callable[[float], str]] = {
    "GB": partial(format_si, unit="B"),
    "GiB": format_bytes,
}
MAX_RANK_ROWS = 64


@dataclass(frozen=True)
class Bar:
    """One row. parts: (category, bytes), from the left."""

    label: str
    parts: tuple[tuple[str, float], ...]
    y: float
    height: float
    chosen: bool = True
    solid: bool = True  # the others are pale

    @property
    def bytes(self) -> float:
        return sum(size for _, size in self.parts)


def opposite(stage: int) -> int:
    """The stage with which another one is compared: 3 for stage 0, 0 for the others."""
    return 3 if stage == 0 else 0


def states_at(settings: Mapping[str, Any], stage: int) -> ModelStates:
    """Predicted bytes at a stage, with as much offloaded as that stage supports."""
    return model_states(settings["parameters"], **formula_keywords(settings, stage))


def formula_keywords(settings: Mapping[str, Any], stage: int) -> dict[str, Any]:
    """Keyword arguments of `model_states`."""
    offload = settings["offload"]
    return {
        "stage": stage,
        "world_size": settings["worldSize"],
        "precision": settings["precision"],
        "optimizer": settings["optimizer"],
        "offload_optimizer": stage >= 1 and offload in ("optimizer", "both"),
        "offload_parameters": stage == 3 and offload in ("parameters", "both"),
    }


class MemoryBarsLayout:
    """Positions of stages, measured ranks, host, axis and legend."""

    def __init__(
        self, capacity_bytes: float | None, measured: dict[str, NDArray[np.float64]] | None
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.measured = measured
        self.ranks = 0 if measured is None else len(next(iter(measured.values())))
        shown = min(self.ranks, MAX_RANK_ROWS)
        self.measured_row = max(4.0, min(22.0, 240.0 / max(shown, 1)))
        self.stages_y = 44.0
        self.measured_y = self.stages_y + len(STAGES) * ROW + 34
        after = self.measured_y + shown * self.measured_row + 34 if shown else self.measured_y
        self.host_y = after
        self.axis_y = self.host_y + ROW + 6
        self.height = self.axis_y + 56

    def measured_bars(self) -> list[Bar]:
        """A row for each rank; if there are too many, for the fullest rank of each group."""
        if self.measured is None:
            return []
        totals = sum(self.measured.values())
        shown = min(self.ranks, MAX_RANK_ROWS)
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
                solid=stage in (settings["stage"], opposite(settings["stage"])),
            )
            for stage in STAGES
        ]

    def host_bar(self, settings: Mapping[str, Any]) -> Bar:
        parts = tuple(states_at(settings, settings["stage"]).host.items())
        return Bar("host", parts, self.host_y, ROW)

    def axis_bytes(self, settings: Mapping[str, Any]) -> float:
        """Where the axis ends: the same for every stage, so that stages can be compared."""
        bars = [*self.stage_bars(settings), *self.measured_bars(), self.host_bar(settings)]
        return 1.04 * max(*(bar.bytes for bar in bars), self.capacity_bytes or 0)

    # ---- the static picture ----

    def marks(self, settings: Mapping[str, Any]) -> list[Mark]:
        axis_bytes = self.axis_bytes(settings)
        format_size = UNITS[settings["unit"]]
        marks = self._axis(axis_bytes, settings["unit"])
        n = settings["worldSize"]
        devices = "the device" if n == 1 else f"each of {n} devices"
        marks.append(self._heading(self.stages_y - 18, f"predicted on {devices}, by stage"))
        for bar in self.stage_bars(settings):
            marks += self._bar(bar, axis_bytes, format_size)
        if self.measured is not None:
            marks.append(self._heading(self.measured_y, "measured, by rank"))
            predicted = states_at(settings, settings["stage"]).device_bytes
            x = LEFT + min(1.0, predicted / axis_bytes) * (RIGHT - LEFT)
            for bar in self.measured_bars():
                marks += self._bar(bar, axis_bytes, format_size)
            height = len(self.measured_bars()) * self.measured_row
            marks.append(
                Rect(x=x - 1.5, y=self.measured_y - 2, width=3, height=height + 4, fill=PREDICTED)
            )
        marks.append(self._heading(self.host_y, "on the host, per rank"))
        marks += self._bar(self.host_bar(settings), axis_bytes, format_size)
        marks += self._capacity(axis_bytes, format_size)
        return marks + self.legend()

    def _heading(self, y: float, text: str) -> Text:
        return Text(x=LEFT, y=y - 8, text=text, fill="muted")

    def _bar(self, bar: Bar, axis_bytes: float, format_size: Any) -> list[Mark]:
        per_byte = (RIGHT - LEFT) / axis_bytes
        thick = bar.height - (8 if bar.height >= 20 else 3 if bar.height >= 9 else 1)
        top = bar.y + (bar.height - thick) / 2
        opacity = 1.0 if bar.solid else 0.45
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
            marks.append(Rect(x=x, y=top, width=width, height=thick, fill=color, opacity=opacity))
            text = format_size(size)
            if thick >= 14 and text_width(text, 11) + 8 <= width:
                marks.append(
                    Text(
                        x=x + width / 2, y=top + thick / 2 + 4, text=text, size=11,
                        anchor="middle", fill=ink_on(color) if bar.solid else "text",
                    )
                )  # fmt: skip
            x += width
        if bar.chosen and self.capacity_bytes is not None and bar.label != "host":
            edge = LEFT + self.capacity_bytes * per_byte
            if x > edge:  # the part over capacity
                marks.append(
                    Rect(
                        x=edge, y=top - 1, width=x - edge, height=thick + 2,
                        stroke=ERROR, stroke_width=2.5,
                    )
                )  # fmt: skip
        if bar.height >= 10:
            y = bar.y + bar.height / 2 + 4
            note = self._verdict(bar, format_size)
            marks.append(Text(x=RIGHT + 12, y=y, text=note, size=11))
        return marks

    def _verdict(self, bar: Bar, format_size: Any) -> str:
        if bar.label == "host" and not bar.bytes:
            return "nothing"
        if bar.label == "host" or self.capacity_bytes is None:
            return str(format_size(bar.bytes))
        fits = bar.bytes <= self.capacity_bytes
        return f"{format_size(bar.bytes)} {'✓ fits' if fits else '✗ does not fit'}"

    def _capacity(self, axis_bytes: float, format_size: Any) -> list[Mark]:
        if self.capacity_bytes is None:
            return []
        x = LEFT + self.capacity_bytes / axis_bytes * (RIGHT - LEFT)
        bottom = self.host_y - 26
        d = f"M{x:.2f} {self.stages_y - 6}L{x:.2f} {bottom}"
        label = f"capacity {format_size(self.capacity_bytes)}"
        anchor = "end" if x > LEFT + 160 else "start"
        at = x + (-6 if anchor == "end" else 6)
        return [
            Path(d=d, stroke="text", stroke_width=2, dash="6 4"),
            Text(x=at, y=self.stages_y - 8, text=label, size=11, anchor=anchor, weight=600),
        ]

    def _axis(self, axis_bytes: float, unit: str) -> list[Mark]:
        marks: list[Mark] = []
        for tick in ticks(axis_bytes, 5, decimal=unit == "GB"):
            x = LEFT + tick / axis_bytes * (RIGHT - LEFT)
            marks.append(line(x, self.stages_y - 4, x, self.axis_y, opacity=0.5))
            text = UNITS[unit](tick) if tick else "0"
            marks.append(
                Text(x=x, y=self.axis_y + 14, text=text, size=11, anchor="middle", fill="muted")
            )
        return marks

    def legend(self) -> list[Mark]:
        """The categories that may be shown."""
        names = ["parameters", "gradients", "optimizer"]
        names += [n for n, sizes in (self.measured or {}).items() if n not in names and sizes.any()]
        marks: list[Mark] = []
        x, y = LEFT, self.axis_y + 32
        for name in names:
            words = "optimizer, fp32 master weights" if name == "optimizer" else name
            marks.append(Rect(x=x, y=y, width=10, height=10, fill=MEMORY[name], radius=2))
            marks.append(Text(x=x + 15, y=y + 9, text=words, size=11, fill="muted"))
            x += 15 + text_width(words, 10) + 14
        if self.measured is not None:
            marks.append(Rect(x=x, y=y - 2, width=3, height=14, fill=PREDICTED))
            marks.append(Text(x=x + 9, y=y + 9, text="predicted states", size=11, fill="muted"))
        return marks


def ticks(end: float, count: int, *, decimal: bool) -> list[float]:
    """From 0 to ``end`` in at most ``count`` steps: round numbers, or powers of two."""
    rough = end / count
    if decimal:
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    else:
        step = 2.0 ** math.ceil(math.log2(rough))
    return [index * step for index in range(int(end / step) + 1)]
