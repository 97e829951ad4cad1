"""Memory bars: what each rank's device holds by ZeRO stage, beside what was measured.

The sliders redraw in the browser, by the formula in ``memory_formula.js``; this file has the same
picture standing still. All numbers of one picture are in one family of units: GB (1e9 bytes) as
in the paper's table, or GiB (2**30).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import traitlets
from numpy.typing import NDArray

from shardlab.estimate.memory import (
    PRECISION_BYTES,
    STATE_BYTES,
    ModelStates,
    largest_model,
    model_states,
)
from shardlab.run import MEMORY_CATEGORIES
from shardlab.widgets.palette import ERROR, MEMORY, PREDICTED, ink_on
from shardlab.widgets.picture import Picture, module
from shardlab.widgets.scene import Mark, Path, Rect, Text, as_json, line, text_width, to_svg
from shardlab.widgets.units import format_bytes, format_count, format_si

WIDTH = 800.0
LEFT = 96.0  # of the bars: row names stand before them
RIGHT = 640.0  # of the bars: totals and verdicts stand behind them
ROW = 30.0
STAGES = (0, 1, 2, 3)
OFFLOADS = ("none", "optimizer", "parameters", "both")
UNITS: dict[str, Callable[[float], str]] = {
    "GB": partial(format_si, unit="B"),
    "GiB": format_bytes,
}
MOST_RANK_ROWS = 64
WORLD_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
FOOTER = (
    "Predicted: model states alone, by the formulas of arXiv 1910.02054, section 5. Activations, "
    "buckets and padding come on top."
)


@dataclass(frozen=True)
class Bar:
    """One row. parts: (category, bytes), from the left."""

    label: str
    parts: tuple[tuple[str, float], ...]
    y: float
    height: float
    chosen: bool = True
    note: str = ""

    @property
    def bytes(self) -> float:
        return sum(size for _, size in self.parts)


class MemoryBars(Picture):
    """Bytes by category on each rank. Made by `memory_bars`.

    ``settings`` follows the sliders and may be set: parameters, worldSize, stage, precision,
    optimizer, offload ("none", "optimizer", "parameters", "both"), unit ("GB", "GiB").
    """

    _esm: ClassVar[str] = module("memory_formula.js", "memory_bars.js")
    settings = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        settings: dict[str, Any],
        capacity_bytes: float | None,
        measured: dict[str, NDArray[np.float64]] | None,
    ) -> None:
        self._layout = layout = Layout(capacity_bytes, measured)
        worlds = sorted({*WORLD_SIZES, settings["worldSize"]})
        scene = {
            "width": WIDTH,
            "height": layout.height,
            "left": LEFT,
            "right": RIGHT,
            "row": ROW,
            "stages_y": layout.stages_y,
            "measured_y": layout.measured_y,
            "measured_row": layout.measured_row,
            "host_y": layout.host_y,
            "axis_y": layout.axis_y,
            "legend": as_json(layout.legend()),
            "capacity_bytes": capacity_bytes,
            "measured": [list(row.parts) for row in layout.measured_bars()],
            "measured_labels": [row.label for row in layout.measured_bars()],
            "colors": {name: [color, ink_on(color)] for name, color in MEMORY.items()},
            "predicted_color": PREDICTED,
            "error_color": ERROR,
            "costs": {
                "precision": {name: list(sizes) for name, sizes in PRECISION_BYTES.items()},
                "optimizer": STATE_BYTES,
            },
            "precisions": [
                name
                for name in PRECISION_BYTES
                if name != "fp32-master" or settings["precision"] == name
            ],
            "world_sizes": worlds,
            "footer": FOOTER,
        }
        super().__init__(scene=scene, settings=settings)

    @traitlets.validate("settings")
    def _known(self, proposal: dict[str, Any]) -> dict[str, Any]:
        try:
            return _checked(dict(proposal["value"]))
        except (KeyError, ValueError) as wrong:
            raise traitlets.TraitError(f"settings: {wrong}") from wrong

    def states(self, stage: int | None = None) -> ModelStates:
        """Predicted bytes on each rank by the present settings, or at another stage."""
        return states_at(self.settings, self.settings["stage"] if stage is None else stage)

    def static_svg(self) -> str:
        return to_svg(
            self._layout.marks(self.settings),
            WIDTH,
            self._layout.height,
            title=f"Model states · {self._words()}",
            subtitle="",
            footer=f"{self.summary()} {FOOTER}",
        )

    def summary(self) -> str:
        told = UNITS[self.settings["unit"]]
        total = self.states().device_bytes
        text = f"Stage {self.settings['stage']}: {told(total)} on each rank's device"
        capacity = self._layout.capacity_bytes
        if capacity is None:
            return text + "."
        if total > capacity:
            return f"{text}. Does not fit: {told(total - capacity)} over {told(capacity)}."
        return f"{text}. Fits: {told(capacity - total)} of {told(capacity)} are left."

    def largest_model(self) -> int | None:
        """The most parameters that fit by the present settings; None: the device sets no limit."""
        capacity = self._layout.capacity_bytes
        if capacity is None:
            return None
        stage = self.settings["stage"]
        try:
            return largest_model(capacity, **_keywords(self.settings, stage))
        except ValueError:
            return None

    def _words(self) -> str:
        s = self.settings
        ranks = "1 rank" if s["worldSize"] == 1 else f"{s['worldSize']} ranks"
        moved = "" if s["offload"] == "none" else f", offload: {s['offload']}"
        return (
            f"{format_count(s['parameters'])} parameters, {ranks}, {s['precision']}, "
            f"{s['optimizer']}{moved}"
        )


def memory_bars(
    parameters: float = 7.5e9,
    world_size: int = 64,
    stage: int = 0,
    precision: str = "bf16",
    optimizer: str = "adam",
    offload: str | bool | None = None,
    capacity_bytes: float | None = None,
    measured: Any = None,
    *,
    moment: str = "peak",
    unit: str = "GB",
) -> MemoryBars:
    """Draw the bytes of model states on each rank, at ZeRO stages 0 to 3, with sliders.

    offload: what lives on the host: "optimizer", "parameters", "both", or None. A stage that
        cannot offload it keeps it: stage 0 has nothing sharded, parameters move at stage 3 only.
    capacity_bytes: of a device; draws a line, and says what fits.
    measured: a run with ``memory=True``, its ``run.memory``, or {category: bytes}, where bytes are
        one number or one for each rank. Of a run, ``moment`` is shown: "peak", "end", a phase.
    unit: "GB" (1e9 bytes) or "GiB" (2**30); a button changes it.

    Raises ValueError for what the formula does not know.
    """
    if not isinstance(offload, str):
        offload = "optimizer" if offload else "none"
    settings = {
        "parameters": int(parameters) if parameters == parameters // 1 else float(parameters),
        "worldSize": int(world_size),
        "stage": int(stage),
        "precision": precision,
        "optimizer": optimizer,
        "offload": offload,
        "unit": unit,
    }
    if capacity_bytes is not None:
        if not 0 < capacity_bytes < math.inf:
            raise ValueError(f"capacity_bytes={capacity_bytes}: more than 0, or None for no line")
        capacity_bytes = float(capacity_bytes)
    overlay = None if measured is None else measured_bytes(measured, moment)
    return MemoryBars(_checked(settings), capacity_bytes, overlay)


def measured_bytes(measured: Any, moment: str = "peak") -> dict[str, NDArray[np.float64]]:
    """{category: bytes [N]} of a run, of what it says of memory, or of such a mapping."""
    memory = getattr(measured, "memory", measured)
    found = memory if isinstance(memory, Mapping) else memory.at(moment)
    columns = {name: np.atleast_1d(np.asarray(size, float)) for name, size in found.items()}
    if unknown := sorted(set(columns) - set(MEMORY_CATEGORIES)):
        raise ValueError(f"measured: {unknown[0]!r} is none of {', '.join(MEMORY_CATEGORIES)}")
    lengths = {len(column) for column in columns.values()}
    if not columns or len(lengths) > 1 or any(np.any(c < 0) for c in columns.values()):
        raise ValueError("measured: bytes by category, not negative, and as many ranks for each")
    return {name: columns[name] for name in MEMORY_CATEGORIES if name in columns}


def states_at(settings: Mapping[str, Any], stage: int) -> ModelStates:
    """Predicted bytes at a stage, offloading what that stage can."""
    return model_states(settings["parameters"], **_keywords(settings, stage))


def _keywords(settings: Mapping[str, Any], stage: int) -> dict[str, Any]:
    wish = settings["offload"]
    return {
        "stage": stage,
        "world_size": settings["worldSize"],
        "precision": settings["precision"],
        "optimizer": settings["optimizer"],
        "offload_optimizer": stage >= 1 and wish in ("optimizer", "both"),
        "offload_parameters": stage == 3 and wish in ("parameters", "both"),
    }


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    for name, known in (("offload", OFFLOADS), ("unit", tuple(UNITS))):
        if settings[name] not in known:
            raise ValueError(f"{name}={settings[name]!r}: one of {', '.join(known)}")
    states_at(settings, settings["stage"])
    if not settings["parameters"] > 0:
        raise ValueError(f"parameters={settings['parameters']}: more than 0")
    return settings


class Layout:
    """Where the rows lie: stages, measured ranks, host, axis, key of colours."""

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
