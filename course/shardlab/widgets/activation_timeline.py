"""The activation timeline: each tensor of a step is a ribbon, as long as its lifetime.

The height of a ribbon is its bytes.  Runs are drawn one below another on the same scales: a flatter
stack has a lower peak, and a longer one has more tensors, because some were recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from shardlab.display.palette import MEMORY, OTHER_PART, PARTS
from shardlab.trace.lifetimes import Life, Lifetimes
from shardlab.widgets.picture import Picture, module
from shardlab.widgets.ribbons import Box, Ribbon, ribbons, stack_order
from shardlab.widgets.scene import Mark, Path, Rect, Text, as_json, line, text_width, to_svg
from shardlab.widgets.traffic_map import byte_ticks
from shardlab.widgets.units import format_bytes

WIDTH = 800.0
LEFT = 66.0  # of the panels; byte labels are to the left
RIGHT = 620.0
PHASE_ROW = 20.0  # height of the phase names above each panel
MAX_RUNS = 4
PANEL_HEIGHT = {1: 250.0, 2: 170.0, 3: 130.0, 4: 105.0}  # by the number of runs
MIN_RIBBON_HEIGHT = 0.3  # in pixels; thinner ribbons are not drawn
MIN_OUTLINED_SIZE = 2.5
TEMPORARY = MEMORY["other"]


class ActivationTimeline(Picture):
    """Tensors of one or several steps over time. Made by `activation_timeline`."""

    _esm: ClassVar[str] = module("activation_timeline.js")

    def __init__(self, runs: Mapping[str, Lifetimes]) -> None:
        self._runs = dict(runs)
        self._layout = layout = ActivationTimelineLayout(self._runs)
        scene = {
            "width": WIDTH,
            "height": layout.height,
            "left": LEFT,
            "right": RIGHT,
            "operators": layout.operators,
            "max_bytes": layout.max_bytes,
            "panels": [
                _for_browser(name, run, layout.boxes[name]) for name, run in self._runs.items()
            ],
            "background": as_json(layout.background()),
            "ribbons": as_json(layout.ribbons()),
            "overlay": as_json(layout.overlay()),
        }
        super().__init__(scene=scene)

    def summary(self) -> str:
        return "; ".join(
            f"{name + ': ' if name else ''}peak {format_bytes(run.peak_bytes)}, "
            f"{format_bytes(run.kept_bytes)} kept by forward"
            for name, run in self._runs.items()
        )

    def static_svg(self) -> str:
        layout = self._layout
        return to_svg(
            [*layout.background(), *layout.ribbons(), *layout.overlay()],
            WIDTH,
            layout.height,
            title="Activations of a step, tensor by tensor",
            footer=self.summary(),
        )


def activation_timeline(runs: Lifetimes | Mapping[str, Lifetimes]) -> ActivationTimeline:
    """Draw the lifetime of each tensor in a step that `shardlab.trace.lifetimes.record` recorded.

    runs: one recording, or up to four by name, drawn one below another on the same scales.

    Parameters, their gradients and the batch are not shown.  Raises ValueError for no run, more
    than four runs, or a run without tensors.
    """
    given = {"": runs} if isinstance(runs, Lifetimes) else dict(runs)
    if not 1 <= len(given) <= MAX_RUNS:
        raise ValueError(f"{len(given)} runs: pass 1 to {MAX_RUNS}")
    for name, run in given.items():
        if not run.lives:
            raise ValueError(f"run {name!r} created no tensors")
    return ActivationTimeline({str(name): run for name, run in given.items()})


def _for_browser(name: str, run: Lifetimes, box: Box) -> dict[str, Any]:
    """The data that activation_timeline.js reads, lives in stack order."""
    lives = [run.lives[index] for index in stack_order(run.lives)]
    return {
        "name": name,
        "top": box.top,
        "bottom": box.bottom,
        "operators": run.operators,
        "peak_bytes": run.peak_bytes,
        "peak_at": run.peak_at,
        "kept_bytes": run.kept_bytes,
        "phases": [list(phase) for phase in run.phases],
        "lives": [
            [life.name, life.bytes, life.created_at, life.freed_at, life.kind] for life in lives
        ],
    }


class ActivationTimelineLayout:
    def __init__(self, runs: Mapping[str, Lifetimes]) -> None:
        self.runs = runs
        self.stacks: dict[str, list[Ribbon]] = {name: ribbons(run) for name, run in runs.items()}
        self.max_bytes = 1.16 * max(run.peak_bytes for run in runs.values())
        self.operators = max(run.operators for run in runs.values())
        self.colors = _colors(runs)
        height = PANEL_HEIGHT[len(runs)]
        tops = [PHASE_ROW + i * (height + PHASE_ROW + 8) for i in range(len(runs))]
        self.boxes = {
            name: Box(LEFT, RIGHT, top, top + height, self.operators, self.max_bytes)
            for name, top in zip(runs, tops, strict=True)
        }
        self.bottom = max(box.bottom for box in self.boxes.values())
        self.legend, legend_height = self._legend(self.bottom + 58)
        self.height = self.bottom + 46 + legend_height

    def background(self) -> list[Mark]:
        """Axes, frames, phases and the legend."""
        marks: list[Mark] = []
        for name, box in self.boxes.items():
            for tick in byte_ticks(self.max_bytes, max(3, round((box.bottom - box.top) / 32))):
                y = box.y(tick)
                label = format_bytes(tick) if tick else "0"
                marks.append(line(LEFT - 4, y, RIGHT, y, opacity=0.6))
                marks.append(
                    Text(x=LEFT - 8, y=y + 4, text=label, size=11, anchor="end", fill="muted")
                )
            for phase, start, end in self.runs[name].phases:
                left, right = box.x(start), box.x(end)
                marks += [
                    Rect(
                        x=left, y=box.top, width=right - left, height=box.bottom - box.top,
                        fill="text", opacity=0.05,
                    ),
                    Rect(
                        x=left, y=box.top - 4, width=max(1.0, right - left - 1), height=3,
                        fill="muted", opacity=0.6,
                    ),
                    Text(x=left, y=box.top - 8, text=phase, size=11, fill="muted"),
                ]  # fmt: skip
            marks.append(
                Rect(
                    x=LEFT, y=box.top, width=RIGHT - LEFT, height=box.bottom - box.top,
                    stroke="rule",
                )
            )  # fmt: skip
        return [*marks, *self._axis(), *self.legend]

    def _axis(self) -> list[Mark]:
        marks: list[Mark] = []
        step = next(
            each for power in range(9) for each in (10**power, 2 * 10**power, 5 * 10**power)
            if self.operators / each <= 8
        )  # fmt: skip
        box = next(iter(self.boxes.values()))
        for tick in range(0, self.operators + 1, step):
            x = box.x(tick)
            marks.append(line(x, self.bottom, x, self.bottom + 4))
            marks.append(
                Text(
                    x=x, y=self.bottom + 16, text=str(tick), size=11, anchor="middle", fill="muted"
                )
            )
        title = "operators that created a tensor, in order"
        middle = (LEFT + RIGHT) / 2
        marks.append(
            Text(x=middle, y=self.bottom + 33, text=title, size=11, anchor="middle", fill="muted")
        )
        return marks

    def _legend(self, top: float) -> tuple[list[Mark], float]:
        entries = [(name or "embedding, head, loss", color) for name, color in self.colors.items()]
        marks: list[Mark] = []
        x, y = LEFT, top
        hatched = next(iter(self.colors.values()))
        kinds = {life.kind for run in self.runs.values() for life in run.lives}
        recomputed = [("recomputed", hatched)] if "recomputed" in kinds else []
        for name, color in [*entries, *recomputed, ("temporary", TEMPORARY)]:
            width = 17 + text_width(name, 12) + 12
            if x + width > WIDTH:
                x, y = LEFT, y + 20
            marks.append(
                Rect(
                    x=x, y=y - 10, width=11, height=11, fill=color, radius=2,
                    hatch=name == "recomputed",
                )
            )  # fmt: skip
            marks.append(Text(x=x + 17, y=y, text=name, size=12))
            x += width
        return marks, y - top + 20

    def ribbons(self) -> list[Mark]:
        """One shape per tensor. Ribbons that are too thin are omitted, which leaves gaps."""
        marks: list[Mark] = []
        for name, stack in self.stacks.items():
            box = self.boxes[name]
            for ribbon in stack:
                if box.y(0) - box.y(ribbon.life.bytes) < MIN_RIBBON_HEIGHT:
                    continue
                is_recomputed = ribbon.life.kind == "recomputed"
                color = self.color_of(ribbon.life)
                edge = color if is_recomputed else "surface"
                marks.append(
                    Path(
                        d=ribbon.path(box), fill=color, hatch=is_recomputed,
                        stroke=edge if self._is_large(ribbon.life, box) else "none",
                        stroke_width=0.5,
                    )
                )  # fmt: skip
        return marks

    @staticmethod
    def _is_large(life: Life, box: Box) -> bool:
        """Whether the ribbon is still visible when outlined."""
        width, height = box.x(life.freed_at) - box.x(life.created_at), box.y(0) - box.y(life.bytes)
        return min(width, height) >= MIN_OUTLINED_SIZE

    def color_of(self, life: Life) -> str:
        if life.kind == "temporary":
            return TEMPORARY
        return self.colors.get(life.part, OTHER_PART)

    def overlay(self) -> list[Mark]:
        """The peak of each panel, with numbers to the right."""
        marks: list[Mark] = []
        for name, run in self.runs.items():
            box = self.boxes[name]
            x, y = box.x(run.peak_at + 0.5), box.y(run.peak_bytes)
            marks.append(
                Rect(
                    x=x - 4, y=y - 4, width=8, height=8, radius=4, fill="surface", stroke="text",
                    stroke_width=2,
                )
            )  # fmt: skip
            rows = [
                ("", name),
                ("peak", format_bytes(run.peak_bytes)),
                ("kept by forward", format_bytes(run.kept_bytes)),
                ("operators", f"{run.operators:,}"),
            ]
            row_y = box.top + 12
            for label, value in rows:
                if not label and value:
                    marks.append(Text(x=RIGHT + 12, y=row_y, text=value, size=12, weight=600))
                elif label:
                    marks.append(Text(x=RIGHT + 12, y=row_y, text=label, size=11, fill="muted"))
                    marks.append(Text(x=WIDTH - 4, y=row_y, text=value, size=12, anchor="end"))
                if value:
                    row_y += 19
        return marks


def _colors(runs: Mapping[str, Lifetimes]) -> dict[str, str]:
    """A color for each numbered part of the model; "" is for all others."""
    parts: dict[str, None] = {}
    for run in runs.values():
        for life in run.lives:
            if life.part.rsplit(".", 1)[-1].isdigit():
                parts[life.part] = None
    ordered = sorted(
        parts, key=lambda part: [int(p) if p.isdigit() else -1 for p in part.split(".")]
    )
    colors = {part: PARTS[i % len(PARTS)] for i, part in enumerate(ordered)}
    return {**colors, "": OTHER_PART}
