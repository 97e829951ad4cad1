"""The activation timeline: each tensor of a step is a ribbon, as long as it lives.

Its height is its bytes.  Runs stand one below the other in the same scales: a lower picture holds
fewer bytes at its highest, a longer one made more tensors, those that were computed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from shardlab.lifetimes import Life, Lifetimes
from shardlab.widgets.palette import MEMORY
from shardlab.widgets.picture import Picture, module
from shardlab.widgets.ribbons import Box, Ribbon, ribbons, stack_order
from shardlab.widgets.scene import Mark, Path, Rect, Text, as_json, line, text_width, to_svg
from shardlab.widgets.shard_map import COLORS
from shardlab.widgets.traffic_map import byte_ticks
from shardlab.widgets.units import format_bytes

WIDTH = 800.0
LEFT = 66.0  # of the panels: bytes stand before them
RIGHT = 620.0
LANE = 20.0  # names of phases above each panel
MOST_RUNS = 4
TALL = {1: 250.0, 2: 170.0, 3: 130.0, 4: 105.0}  # a panel, by the number of runs
THINNEST = 0.3  # of a ribbon that is drawn, in pixels
SMALLEST_WITH_EDGE = 2.5
REST = "#B08968"  # what belongs to no numbered part: embedding, head, loss
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
            "most": layout.most,
            "panels": [_plain(name, told, layout.boxes[name]) for name, told in self._runs.items()],
            "ground": as_json(layout.ground()),
            "ribbons": as_json(layout.ribbons()),
            "over": as_json(layout.over()),
        }
        super().__init__(scene=scene)

    def summary(self) -> str:
        return "; ".join(
            f"{name + ': ' if name else ''}peak {format_bytes(told.peak_bytes)}, "
            f"{format_bytes(told.kept_bytes)} kept by forward"
            for name, told in self._runs.items()
        )

    def static_svg(self) -> str:
        layout = self._layout
        return to_svg(
            [*layout.ground(), *layout.ribbons(), *layout.over()],
            WIDTH,
            layout.height,
            title="Activations of a step, tensor by tensor",
            footer=self.summary(),
        )


def activation_timeline(runs: Lifetimes | Mapping[str, Lifetimes]) -> ActivationTimeline:
    """Draw which tensors live when in a step that `shardlab.lifetimes.record` followed.

    runs: one, or up to four by name, drawn below each other in the same scales.

    Parameters, their gradients and the batch are not shown.  Raises ValueError for no run, more
    than four, or one that made no tensor.
    """
    given = {"": runs} if isinstance(runs, Lifetimes) else dict(runs)
    if not 1 <= len(given) <= MOST_RUNS:
        raise ValueError(f"{len(given)} runs: give 1 to {MOST_RUNS}")
    for name, told in given.items():
        if not told.lives:
            raise ValueError(f"run {name!r} made no tensor")
    return ActivationTimeline({str(name): told for name, told in given.items()})


def _plain(name: str, told: Lifetimes, box: Box) -> dict[str, Any]:
    """As the browser reads it; see activation_timeline.js. Lives in the order of the stack."""
    lives = [told.lives[index] for index in stack_order(told.lives)]
    return {
        "name": name,
        "top": box.top,
        "bottom": box.bottom,
        "operators": told.operators,
        "peak_bytes": told.peak_bytes,
        "peak_at": told.peak_at,
        "kept_bytes": told.kept_bytes,
        "phases": [list(phase) for phase in told.phases],
        "lives": [[life.name, life.bytes, life.born, life.gone, life.kind] for life in lives],
    }


class ActivationTimelineLayout:
    def __init__(self, runs: Mapping[str, Lifetimes]) -> None:
        self.runs = runs
        self.stacks: dict[str, list[Ribbon]] = {name: ribbons(told) for name, told in runs.items()}
        self.most = 1.16 * max(told.peak_bytes for told in runs.values())
        self.operators = max(told.operators for told in runs.values())
        self.colors = _colors(runs)
        tall = TALL[len(runs)]
        self.boxes = {
            name: Box(
                LEFT, RIGHT, LANE + i * (tall + LANE + 8), LANE + i * (tall + LANE + 8) + tall,
                self.operators, self.most,
            )
            for i, name in enumerate(runs)
        }  # fmt: skip
        self.bottom = max(box.bottom for box in self.boxes.values())
        self.key, key_height = self._key(self.bottom + 58)
        self.height = self.bottom + 46 + key_height

    def ground(self) -> list[Mark]:
        """Scales, frames, phases and the key."""
        marks: list[Mark] = []
        for name, box in self.boxes.items():
            for tick in byte_ticks(self.most, max(3, round((box.bottom - box.top) / 32))):
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
        return [*marks, *self._axis(), *self.key]

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
        told = "operators that made a tensor, one after the other"
        middle = (LEFT + RIGHT) / 2
        marks.append(
            Text(x=middle, y=self.bottom + 33, text=told, size=11, anchor="middle", fill="muted")
        )
        return marks

    def _key(self, top: float) -> tuple[list[Mark], float]:
        entries = [(name or "embedding, head, loss", color) for name, color in self.colors.items()]
        marks: list[Mark] = []
        x, y = LEFT, top
        hatched = next(iter(self.colors.values()))
        kinds = {life.kind for told in self.runs.values() for life in told.lives}
        again = [("recomputed", hatched)] if "recomputed" in kinds else []
        for name, color in [*entries, *again, ("temporary", TEMPORARY)]:
            wide = 17 + text_width(name, 12) + 12
            if x + wide > WIDTH:
                x, y = LEFT, y + 20
            marks.append(
                Rect(
                    x=x, y=y - 10, width=11, height=11, fill=color, radius=2,
                    hatch=name == "recomputed",
                )
            )  # fmt: skip
            marks.append(Text(x=x + 17, y=y, text=name, size=12))
            x += wide
        return marks, y - top + 20

    def ribbons(self) -> list[Mark]:
        """One shape for each tensor; where thin ones are left out the picture has a gap."""
        marks: list[Mark] = []
        for name, stack in self.stacks.items():
            box = self.boxes[name]
            for ribbon in stack:
                if box.y(0) - box.y(ribbon.life.bytes) < THINNEST:
                    continue
                is_again = ribbon.life.kind == "recomputed"
                color = self.color_of(ribbon.life)
                edge = color if is_again else "surface"
                marks.append(
                    Path(
                        d=ribbon.path(box), fill=color, hatch=is_again,
                        stroke=edge if self._is_large(ribbon.life, box) else "none",
                        stroke_width=0.5,
                    )
                )  # fmt: skip
        return marks

    @staticmethod
    def _is_large(life: Life, box: Box) -> bool:
        """Whether an edge leaves anything of it to be seen."""
        wide, tall = box.x(life.gone) - box.x(life.born), box.y(0) - box.y(life.bytes)
        return min(wide, tall) >= SMALLEST_WITH_EDGE

    def color_of(self, life: Life) -> str:
        if life.kind == "temporary":
            return TEMPORARY
        return self.colors.get(life.part, REST)

    def over(self) -> list[Mark]:
        """The highest point of each panel, and its numbers at the right."""
        marks: list[Mark] = []
        for name, told in self.runs.items():
            box = self.boxes[name]
            x, y = box.x(told.peak_at + 0.5), box.y(told.peak_bytes)
            marks.append(
                Rect(
                    x=x - 4, y=y - 4, width=8, height=8, radius=4, fill="surface", stroke="text",
                    stroke_width=2,
                )
            )  # fmt: skip
            rows = [
                ("", name),
                ("peak", format_bytes(told.peak_bytes)),
                ("kept by forward", format_bytes(told.kept_bytes)),
                ("operators", f"{told.operators:,}"),
            ]
            below = box.top + 12
            for label, value in rows:
                if not label and value:
                    marks.append(Text(x=RIGHT + 12, y=below, text=value, size=12, weight=600))
                elif label:
                    marks.append(Text(x=RIGHT + 12, y=below, text=label, size=11, fill="muted"))
                    marks.append(Text(x=WIDTH - 4, y=below, text=value, size=12, anchor="end"))
                if value:
                    below += 19
        return marks


def _colors(runs: Mapping[str, Lifetimes]) -> dict[str, str]:
    """A colour for each numbered part of the model; "" stands for all others."""
    parts: dict[str, None] = {}
    for told in runs.values():
        for life in told.lives:
            if life.part.rsplit(".", 1)[-1].isdigit():
                parts[life.part] = None
    ordered = sorted(
        parts, key=lambda part: [int(p) if p.isdigit() else -1 for p in part.split(".")]
    )
    colors = {part: COLORS[i % len(COLORS)] for i, part in enumerate(ordered)}
    return {**colors, "": REST}
