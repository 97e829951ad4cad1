"""Geometry of the roofline plot: both axes are logarithmic, so a roof is two straight lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shardlab.display.palette import MEASURED, PREDICTED
from shardlab.estimate.roofline import Roofline
from shardlab.estimate.work import Work
from shardlab.widgets.scene import Mark, Path, Rect, Text, line, text_width
from shardlab.widgets.units import format_count, format_si

WIDTH, HEIGHT = 700.0, 372.0
LEFT, RIGHT, TOP, BOTTOM = 84.0, 692.0, 34.0, 328.0
RADIUS = 5.0  # of a point
DASHES = ("", "7 4", "2 3", "9 3 2 3")  # roofs of different machines
TICKS = 8  # at most on an axis

Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass
class Axes:
    """Where operations for each byte (x) and operations per second (y) are in the picture."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    taken: list[Box] = field(default_factory=list)  # by labels

    @classmethod
    def around(cls, machines: Mapping[str, Roofline], works: Sequence[Work]) -> Axes:
        """All ridges and points with space around them."""
        roofs = machines.values()
        x = [each.intensity for each in works] + [roof.ridge for roof in roofs]
        x_range = min(x) / 5, max(x) * 8
        y = [roof.flops_per_s for roof in roofs]
        y += [each.flops_per_s for each in works if each.flops_per_s]
        y += [roof.attainable_flops_per_s(min(x)) for roof in roofs]
        return cls(x_range, (min(y) / 3, max(y) * 3))

    def x(self, intensity: float) -> float:
        return LEFT + (RIGHT - LEFT) * _share(intensity, self.x_range)

    def y(self, flops_per_s: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * _share(flops_per_s, self.y_range)

    def label(self, x: float, y: float, text: str, *, weight: int = 400) -> list[Mark]:
        """A label next to a point, where nothing else is written; else none."""
        width = text_width(text, 11)
        for left, base in (
            (x + 9, y + 15), (x - 9 - width, y - 7), (x + 9, y + 4), (x - 9 - width, y + 4),
            (x + 9, y - 8), (x - width / 2, y + 22), (x - width / 2, y - 12),
        ):  # fmt: skip
            if self._claim((left, base - 10, left + width, base + 3)):
                return [Text(x=left, y=base, text=text, size=11, weight=weight)]
        return []

    def _claim(self, box: Box) -> bool:
        left, top, right, bottom = box
        if left < LEFT or right > RIGHT or top < TOP - 4 or bottom > BOTTOM:
            return False
        if any(left < r and l < right and top < b and t < bottom for l, t, r, b in self.taken):  # noqa: E741
            return False
        self.taken.append(box)
        return True


def background(machines: Mapping[str, Roofline], axes: Axes, bytes_of: str) -> list[Mark]:
    """Axes, roofs and ridges."""
    marks: list[Mark] = []
    for at in decades(axes.x_range):
        x = axes.x(at)
        marks.append(line(x, TOP, x, BOTTOM, opacity=0.5))
        marks.append(_small(x, BOTTOM + 16, format_intensity(at), "middle"))
    for at in decades(axes.y_range):
        y = axes.y(at)
        marks.append(line(LEFT, y, RIGHT, y, opacity=0.5))
        marks.append(_small(LEFT - 8, y + 4, format_si(at, "FLOP/s"), "end"))
    per = "byte of memory traffic" if bytes_of == "memory" else "byte sent"
    marks.append(_small((LEFT + RIGHT) / 2, BOTTOM + 36, f"FLOP per {per}", "middle"))
    marks += legend()
    # The highest roof first, so that labels of lower ones move down.
    by_peak = sorted(enumerate(machines.items()), key=lambda each: -each[1][1].flops_per_s)
    ridges: list[float] = []
    for index, (name, roof) in by_peak:
        marks += _roof(axes, roof, DASHES[index % len(DASHES)], name)
        x = axes.x(roof.ridge)
        rows = sum(abs(x - other) < 44 for other in ridges)
        ridges.append(x)
        text = format_intensity(roof.ridge)
        y = BOTTOM - 6 - 14 * rows
        end = x + 4 + text_width(text, 11)
        axes.taken.append((x, y - 10, end, y + 3))
        marks.append(Text(x=x + 4, y=y, text=text, size=11, weight=600))
    return marks


def _roof(axes: Axes, roof: Roofline, dash: str, name: str) -> list[Mark]:
    """The slope, the flat part with its label, and a line from the ridge down to the axis."""
    start = max(axes.x_range[0], axes.y_range[0] / roof.memory_bytes_per_s)
    x0, y0 = axes.x(start), axes.y(start * roof.memory_bytes_per_s)
    x, y = axes.x(roof.ridge), axes.y(roof.flops_per_s)
    d = f"M{x0:.1f} {y0:.1f}L{x:.1f} {y:.1f}L{RIGHT:.1f} {y:.1f}"
    words = f"{name}, {format_si(roof.flops_per_s, 'FLOP/s')}".removeprefix(", ")
    width, base = text_width(words, 11), y - 6
    while not axes._claim((RIGHT - width, base - 10, RIGHT, base + 3)) and base < BOTTOM:
        base += 14
    ridge = Path(d=f"M{x:.1f} {y:.1f}L{x:.1f} {BOTTOM:.1f}", stroke="muted", dash="2 4")
    return [
        ridge,
        Path(d=d, stroke="text", stroke_width=2.0, dash=dash),
        Text(x=RIGHT, y=base, text=words, size=11, anchor="end"),
    ]


def spots(machines: Mapping[str, Roofline], axes: Axes, work: Work) -> list[tuple[float, float]]:
    """Where a point is drawn: measured first, then on the roof of each machine."""
    x = axes.x(work.intensity)
    roofs = list(machines.values())
    heights = [] if work.flops_per_s is None else [work.flops_per_s]
    heights += [
        roof.attainable_flops_per_s(work.intensity)
        for roof in (roofs if work.seconds is None else roofs[:1])
    ]
    return [(x, axes.y(each)) for each in heights]


def point(
    machines: Mapping[str, Roofline], axes: Axes, work: Work, *, moves: bool = False
) -> list[Mark]:
    """A point on each roof or, if it was measured, below the first one; with its label."""
    found = spots(machines, axes, work)
    marks: list[Mark] = []
    if moves:
        marks.append(line(found[0][0], TOP, found[0][0], BOTTOM, stroke="muted"))
    if work.seconds is not None:
        marks.append(line(*found[0], *found[1], stroke="muted"))
    marks += [
        disc(x, y, MEASURED if work.seconds is not None and index == 0 else PREDICTED)
        for index, (x, y) in enumerate(found)
    ]
    axes.taken += [(x - 6, y - 6, x + 6, y + 6) for x, y in found]
    return marks + axes.label(*found[0], work.name, weight=600 if moves else 400)


def trail(axes: Axes, works: Iterable[Work]) -> list[Mark]:
    """Small points where the moving one has been measured."""
    return [
        disc(axes.x(each.intensity), axes.y(each.flops_per_s), MEASURED, 2.5, 0.7)
        for each in works
        if each.flops_per_s
    ]


def disc(x: float, y: float, fill: str, radius: float = RADIUS, opacity: float = 1.0) -> Mark:
    """A filled circle, as a rectangle with round corners."""
    return Rect(
        x=x - radius, y=y - radius, width=2 * radius, height=2 * radius, radius=radius,
        fill=fill, opacity=opacity,
    )  # fmt: skip


def legend() -> list[Mark]:
    marks: list[Mark] = []
    for x, fill, text in ((LEFT, PREDICTED, "at most"), (LEFT + 84, MEASURED, "measured")):
        marks.append(disc(x + 5, 12, fill))
        marks.append(_small(x + 16, 16, text, "start"))
    return marks


def decades(span: tuple[float, float]) -> list[float]:
    """Powers of 10 within the span; every second or third if there are too many."""
    low, high = (math.log10(end) for end in span)
    powers = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
    step = math.ceil(len(powers) / TICKS) or 1
    return [10.0**power for power in powers if power % step == 0]


def format_intensity(intensity: float) -> str:
    """``0.5``, ``12.3``, ``341``, ``2,474``, ``1M``."""
    return f"{intensity:.3g}" if intensity < 999.5 else format_count(intensity)


def _share(value: float, span: tuple[float, float]) -> float:
    low, high = (math.log(end) for end in span)
    return (math.log(value) - low) / (high - low)


def _small(x: float, y: float, text: str, anchor: str) -> Mark:
    return Text(x=x, y=y, text=text, size=11, fill="muted", anchor=anchor)
