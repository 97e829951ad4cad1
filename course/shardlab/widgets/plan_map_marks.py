"""Geometry of the planner's scatter: memory (x) and seconds (y) of layouts, both logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardlab.display.palette import ERROR, MEASURED, PREDICTED
from shardlab.widgets.scene import Mark, Path, Rect, Text, line

LEFT, RIGHT, TOP, BOTTOM = 52.0, 462.0, 26.0, 228.0
RADIUS = 2.5  # of a point
FAINT = 0.4  # of one that does not fit

Range = tuple[float, float]


@dataclass(frozen=True)
class Axes:
    memory: Range  # bytes
    seconds: Range

    @classmethod
    def around(cls, memory: Sequence[float], seconds: Sequence[float]) -> Axes:
        return cls(
            (min(memory) / 1.1, max(memory) * 1.1), (min(seconds) / 1.15, max(seconds) * 1.15)
        )

    def x(self, memory_bytes: float) -> float:
        return LEFT + (RIGHT - LEFT) * _share(memory_bytes, self.memory)

    def y(self, seconds: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * _share(seconds, self.seconds)


def _share(value: float, span: Range) -> float:
    low, high = (math.log(end) for end in span)
    return (math.log(value) - low) / (high - low)


def ticks(span: Range, most: int = 7) -> list[float]:
    """Round numbers within the span, at most so many if powers of ten are not more."""
    powers = range(math.floor(math.log10(span[0])), math.ceil(math.log10(span[1])) + 1)
    found: list[float] = []
    for digits in ((1, 1.5, 2, 3, 5, 7), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        every = (digit * 10.0**power for power in powers for digit in digits)
        found = [value for value in every if span[0] <= value <= span[1]]
        if len(found) <= most:
            return found
    return found


def background(axes: Axes, limit: float, *, is_published: bool) -> list[Mark]:
    """Axes, the memory that a device has, and a legend."""
    x = axes.x(limit)
    marks: list[Mark] = [
        Rect(x=x, y=TOP, width=RIGHT - x, height=BOTTOM - TOP, fill=ERROR, opacity=0.08)
    ]
    for value in ticks(axes.memory):
        at = axes.x(value)
        marks.append(line(at, TOP, at, BOTTOM, opacity=0.5))
        marks.append(_small(at, BOTTOM + 15, f"{value / 1e9:g}", "middle"))
    for value in ticks(axes.seconds):
        at = axes.y(value)
        marks.append(line(LEFT, at, RIGHT, at, opacity=0.5))
        marks.append(_small(LEFT - 6, at + 4, f"{value:g} s", "end"))
    words = "GB on the fullest device"
    marks.append(_small((LEFT + RIGHT) / 2, BOTTOM + 31, words, "middle"))
    marks.append(Path(d=f"M{x:.1f} {TOP}V{BOTTOM}", stroke="text", stroke_width=1.5, dash="6 4"))
    marks += [
        point(LEFT + 6, 11, fits=True),
        _small(LEFT + 13, 15, "planned", "start"),
        point(LEFT + 72, 11, fits=False),
        _small(LEFT + 79, 15, "does not fit", "start"),
        Path(d=f"M{LEFT + 160} 11h18", stroke="text", stroke_width=1.5),
        _small(LEFT + 182, 15, "frontier", "start"),
    ]
    if is_published:
        marks += [
            diamond(LEFT + 246, 11),
            _small(LEFT + 255, 15, "published run, measured", "start"),
        ]
    return marks


def _small(x: float, y: float, text: str, anchor: str) -> Mark:
    return Text(x=x, y=y, text=text, size=11, anchor=anchor, fill="muted")


def point(x: float, y: float, *, fits: bool) -> Mark:
    """A layout, as planMapPoints in plan_map.js."""
    return Rect(
        x=x - RADIUS, y=y - RADIUS, width=2 * RADIUS, height=2 * RADIUS, radius=RADIUS,
        fill=PREDICTED, opacity=1.0 if fits else FAINT,
    )  # fmt: skip


def diamond(x: float, y: float) -> Mark:
    """What somebody measured."""
    d = f"M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z"
    return Path(d=d, fill=MEASURED, stroke="surface")


def points(items: Sequence[dict[str, float]]) -> list[Mark]:
    """Layouts, the frontier of them (from the least memory on), and published runs over it."""
    marks = [point(each["x"], each["y"], fits=bool(each["fits"])) for each in items]
    steps = staircase(items)
    if steps:
        d = f"M{steps[0]['x']} {steps[0]['y']}"
        d += "".join(f"H{each['x']}V{each['y']}" for each in steps[1:])
        marks.append(Path(d=d, stroke="text", stroke_width=1.5))
    for each in items:
        if "measured" in each:
            d = f"M{each['x']} {each['y']}V{each['measured']}"
            marks.append(Path(d=d, stroke=MEASURED, stroke_width=1.5))
            marks.append(diamond(each["x"], each["measured"]))
    return marks


def staircase(items: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """Of items by memory, those that are faster than all with less."""
    found: list[dict[str, float]] = []
    for each in items:
        if not found or each["seconds"] < found[-1]["seconds"]:
            found.append(each)
    return found


def ring(x: float, y: float) -> list[Mark]:
    """The selected layout."""
    return [
        Rect(
            x=x - 7, y=y - 7, width=14, height=14, radius=7, stroke=stroke, stroke_width=width
        )
        for stroke, width in (("surface", 4.0), ("text", 2.0))
    ]  # fmt: skip
