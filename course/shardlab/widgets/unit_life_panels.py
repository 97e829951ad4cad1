"""Positions of the marks of the unit life; unit_life_panels.js draws the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardlab.display.palette import CALLS, MEASURED, MEMORY, PHASES, PREDICTED, ink_on
from shardlab.simulate.fsdp import CATEGORIES, ROOT, Span, UnitTimeline
from shardlab.widgets.scene import Mark, Path, Rect, Text, line, text_width
from shardlab.widgets.time_axis import tick_labels, time_ticks
from shardlab.widgets.traffic_map import byte_ticks
from shardlab.widgets.units import format_bytes, format_seconds

WIDTH = 726.0  # a card of 760
LEFT, RIGHT = 92.0, 712.0  # of the time axis; names and bytes are to the left
LEGEND_HEIGHT = 46.0  # above all panels
HEAD = 40.0  # of a panel: its title, then forward and backward
GAP = 8.0  # between its rows and its curve
CURVE = 96.0
BELOW = 14.0  # a panel
AXIS_HEIGHT = 24.0  # below all panels
MAX_LANES = 8  # ranks drawn in each row of a run; beyond that only the chosen one
LANE = 7.0  # the minimum height of a rank's lane

# kind: (color, opacity, hatched)
LOOKS = {
    "whole": (MEMORY["parameters"], 0.45, False),
    "forward": (PHASES["forward"], 1.0, False),
    "backward": (PHASES["backward"], 1.0, False),
    "gather": (CALLS["all_gather"], 1.0, False),
    "waits": (CALLS["all_gather"], 1.0, True),
    "reduce": (CALLS["reduce_scatter"], 1.0, False),
}
LEGEND = (
    ("gather", "all-gather"),
    ("waits", "waits in its buffer"),
    ("whole", "whole"),
    ("forward", "forward"),
    ("backward", "backward"),
    ("reduce", "reduce-scatter"),
)
NAMES = {
    "parameters": "parameters, with the shards kept",
    "gradients": "gradients",
    "buckets": "buffers of collectives",
}


@dataclass(frozen=True)
class Panel:
    """lanes: the timelines drawn in each row, of one rank or of several."""

    title: str
    timeline: UnitTimeline  # of the curve
    lanes: tuple[UnitTimeline, ...]
    is_measured: bool = False

    @property
    def row(self) -> float:
        return max(row_height(len(self.timeline.names)), LANE * len(self.lanes) + 3)

    @property
    def height(self) -> float:
        return HEAD + self.row * len(self.timeline.names) + GAP + CURVE + BELOW

    def figures(self) -> str:
        return f"{messages_text(self.timeline)} · {format_seconds(self.timeline.step_s)}"


def row_height(rows: int) -> float:
    heights = ((6, 20.0), (10, 17.0), (18, 14.0))
    return next((height for limit, height in heights if rows <= limit), max(5.0, 252.0 / rows))


def messages_text(timeline: UnitTimeline) -> str:
    counts = timeline.messages
    return f"{_count(counts['gather'], 'all-gather')}, {_count(counts['reduce'], 'reduce-scatter')}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def drawn_spans(timeline: UnitTimeline) -> list[Span]:
    """The spans, later ones on top, with those in which a gathered unit waits in its buffer."""
    by_kind = {kind: [s for s in timeline.spans if s.kind == kind] for kind in LOOKS}
    for gather in by_kind["gather"]:
        starts = [
            span.start_s
            for span in by_kind["whole"]
            if span.row == gather.row and span.start_s >= gather.end_s
        ]
        if starts:
            by_kind["waits"].append(Span(gather.row, "waits", gather.end_s, min(starts)))
    return [
        span
        for kind in LOOKS
        for span in by_kind[kind]
        # The root computes before, between and after the units: drawn as whole.
        if span.row != ROOT or kind not in ("forward", "backward")
    ]


class Layout:
    """Positions for some panels, one below the other, on one scale of time and one of bytes."""

    def __init__(self, panels: Sequence[Panel], model_bytes: float) -> None:
        self.panels, self.model_bytes = panels, model_bytes
        self.longest_s = max(panel.timeline.step_s for panel in panels)
        highest = max([model_bytes, *(panel.timeline.peak_bytes for panel in panels)])
        self.max_bytes = 1.25 * highest  # room for the label of the peak
        self.height = LEGEND_HEIGHT + sum(panel.height for panel in panels) - BELOW + AXIS_HEIGHT

    def x(self, at_s: float) -> float:
        return LEFT + min(max(at_s / self.longest_s, 0.0), 1.0) * (RIGHT - LEFT)

    def marks(self) -> list[Mark]:
        marks = legend()
        y = LEGEND_HEIGHT
        for panel in self.panels:
            marks += self.head(panel, y)
            marks += self.rows(panel, y + HEAD)
            marks += self.curve(panel, y + panel.height - BELOW)
            y += panel.height
        return marks + self.axis(y - BELOW)

    def head(self, panel: Panel, y: float) -> list[Mark]:
        color = MEASURED if panel.is_measured else PREDICTED
        return [
            Rect(x=0, y=y + 5, width=10, height=10, fill=color, radius=2),
            Text(x=16, y=y + 14, text=panel.title, weight=600),
            Text(x=RIGHT, y=y + 14, text=panel.figures(), size=11, anchor="end", fill="muted"),
        ]

    def rows(self, panel: Panel, top: float) -> list[Mark]:
        row, names = panel.row, panel.timeline.names
        marks: list[Mark] = []
        bottom = top + row * len(names)
        turn_s = turn_of(panel.timeline)
        if turn_s is not None:
            x = self.x(turn_s)
            d = f"M{x:.1f} {top - 14:.1f}V{bottom + GAP + CURVE:.1f}"
            marks.append(Path(d=d, stroke="muted", dash="2 3"))
            marks.append(
                Text(x=x - 6, y=top - 5, text="forward", size=11, anchor="end", fill="muted")
            )
            marks.append(Text(x=x + 6, y=top - 5, text="backward", size=11, fill="muted"))
        every = max(1, -int(-13 // row))  # names that would overlap are omitted
        for index, name in enumerate(names):
            y = top + index * row
            marks.append(line(LEFT, y + row - 1, RIGHT, y + row - 1, opacity=0.5))
            if index % every == 0:
                text, at = shortened(name), y + row / 2 + 4
                marks.append(Text(x=LEFT - 8, y=at, text=text, size=11, anchor="end", fill="muted"))
        height = (row - 3) / len(panel.lanes)
        for lane, timeline in enumerate(panel.lanes):
            for span in drawn_spans(timeline):
                y = top + span.row * row + 1 + lane * height
                marks += self.bar(span, y, height - (1 if len(panel.lanes) > 1 else 0))
        return marks

    def bar(self, span: Span, y: float, height: float) -> list[Mark]:
        x = self.x(span.start_s)
        width = max(self.x(span.end_s) - x, 1.0)
        fill, opacity, hatched = LOOKS[span.kind]
        marks: list[Mark] = [
            Rect(x=x, y=y, width=width, height=height, fill=fill, opacity=opacity, hatch=hatched)
        ]
        if span.kind in ("forward", "backward") and height >= 12:
            label = span.kind if text_width(span.kind, 11) < width - 4 else span.kind[0].upper()
            if text_width(label, 11) < width - 2:
                marks.append(
                    Text(
                        x=x + width / 2, y=y + height / 2 + 4, text=label, size=11,
                        anchor="middle", fill=ink_on(fill),
                    )
                )  # fmt: skip
        return marks

    def curve(self, panel: Panel, bottom: float) -> list[Mark]:
        timeline = panel.timeline
        y = lambda count: bottom - count / self.max_bytes * CURVE  # noqa: E731
        marks: list[Mark] = []
        for tick in byte_ticks(self.max_bytes, 4):
            marks.append(line(LEFT, y(tick), RIGHT, y(tick), opacity=0.6))
            text = format_bytes(tick) if tick else "0"
            marks.append(
                Text(x=LEFT - 8, y=y(tick) + 4, text=text, size=11, anchor="end", fill="muted")
            )
        edges = [0.0] * len(timeline.times_s)
        areas: list[Mark] = []
        for name in CATEGORIES:
            edges = [edge + count for edge, count in zip(edges, timeline.live[name], strict=True)]
            steps = "".join(
                f"H{self.x(at_s):.1f}V{y(edge):.1f}"
                for at_s, edge in zip(timeline.times_s, edges, strict=True)
            )
            start, end = self.x(timeline.times_s[0]), self.x(timeline.step_s)
            d = f"M{start:.1f} {bottom:.1f}{steps}H{end:.1f}V{bottom:.1f}Z"
            areas.insert(0, Path(d=d, fill=MEMORY[name]))
        marks += areas
        level = y(self.model_bytes)
        marks.append(Path(d=f"M{LEFT} {level:.1f}H{RIGHT}", stroke="muted", dash="4 3"))
        peak = timeline.peak_bytes
        text = f"peak {format_bytes(peak)}"
        half = text_width(text, 12) / 2
        x = self.x(timeline.peak_s)
        at = min(max(x, LEFT + half + 4), RIGHT - half - 4)
        marks += [
            Rect(x=x - 4, y=y(peak) - 4, width=8, height=8, radius=4, fill="surface", stroke="text",
                 stroke_width=2),
            Rect(x=at - half - 2, y=y(peak) - 21, width=2 * half + 4, height=15, fill="surface",
                 opacity=0.85),
            Text(x=at, y=y(peak) - 9, text=text, weight=600, anchor="middle"),
        ]  # fmt: skip
        return marks

    def axis(self, bottom: float) -> list[Mark]:
        marks: list[Mark] = [line(LEFT, bottom, RIGHT, bottom)]
        ticks = time_ticks(0, self.longest_s, 6)
        for tick, label in zip(ticks, tick_labels(ticks, self.longest_s), strict=True):
            x = self.x(tick)
            marks.append(line(x, bottom, x, bottom + 4))
            at = min(x, RIGHT - 10)
            marks.append(
                Text(x=at, y=bottom + 16, text=label, size=11, anchor="middle", fill="muted")
            )
        return marks


def legend() -> list[Mark]:
    marks: list[Mark] = []
    x = 0.0
    for kind, text in LEGEND:
        fill, opacity, hatched = LOOKS[kind]
        marks.append(Rect(x=x, y=2, width=14, height=10, fill=fill, opacity=opacity, hatch=hatched))
        marks.append(Text(x=x + 19, y=11, text=text, size=11, fill="muted"))
        x += 19 + text_width(text, 11) + 14
    marks.append(Text(x=0, y=29, text="live bytes:", size=11, fill="muted"))
    x = 66.0
    for name in CATEGORIES:
        marks.append(Rect(x=x, y=20, width=14, height=10, fill=MEMORY[name]))
        marks.append(Text(x=x + 19, y=29, text=NAMES[name], size=11, fill="muted"))
        x += 19 + text_width(NAMES[name], 11) + 14
    marks.append(Path(d=f"M{x} 25H{x + 18}", stroke="muted", dash="4 3"))
    marks.append(Text(x=x + 23, y=29, text="all parameters, whole", size=11, fill="muted"))
    return marks


def turn_of(timeline: UnitTimeline) -> float | None:
    """When forward ends: the root's, or else the last unit's."""
    ends = [span.end_s for span in timeline.spans if span.kind == "forward"]
    return max(ends, default=None)


def shortened(name: str) -> str:
    """A module's path that fits to the left of its row."""
    max_chars = int((LEFT - 12) / text_width("x", 11))
    return name if len(name) <= max_chars else "…" + name[1 - max_chars :]
