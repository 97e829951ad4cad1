"""Geometry of the roofline plot: both axes are logarithmic, so a roof is two straight lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from shardlab.display.palette import MEASURED, PREDICTED
from shardlab.estimate.roofline import Roofline
from shardlab.estimate.work import Work
from shardlab.widgets.scene import Mark, Path, Rect, Text, line, text_width
from shardlab.widgets.units import format_count, format_si

WIDTH, HEIGHT = 700.0, 378.0
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

    def label(self, x: float, y: float, text: str, *, moves: bool = False) -> list[Mark]:
        """A label next to a point, where nothing else is written; else none.

        moves: of the point that has a vertical line, along which there is more space.
        """
        width = text_width(text, 11)
        left, right = x - 9 - width, x + 9
        places = [(right, y + 15), (left, y - 7), (left, y + 15), (right, y - 8)]
        places += [(right, y + 4), (left, y + 4), (x - width / 2, y + 22), (x - width / 2, y - 12)]
        if moves:
            bases = range(round(BOTTOM) - 7, round(TOP), -14)
            places += [(side, base) for base in bases for side in (right, left)]
        for start, base in places:
            if self.claim(start, base, width):
                return written(start, base, text, weight=600 if moves else 400)
        return []

    def claim(self, left: float, base: float, width: float) -> bool:
        """Whether a line of text fits here: it is then taken."""
        right, top, bottom = left + width, base - 10, base + 3
        if left < LEFT or right > RIGHT + 1 or top < TOP - 6 or bottom > BOTTOM:
            return False
        if any(left < r and l < right and top < b and t < bottom for l, t, r, b in self.taken):  # noqa: E741
            return False
        self.taken.append((left, top, right, bottom))
        return True

    def corners(self, roof: Roofline) -> tuple[tuple[float, float], ...]:
        """Where a roof begins, its ridge, and its end, in the picture."""
        start = max(self.x_range[0], self.y_range[0] / roof.memory_bytes_per_s)
        y = self.y(roof.flops_per_s)
        return (
            (self.x(start), self.y(start * roof.memory_bytes_per_s)),
            (self.x(roof.ridge), y),
            (RIGHT, y),
        )

    def avoid(self, machines: Mapping[str, Roofline], points: Iterable[Work]) -> None:
        """No label is written over roofs and points."""
        for roof in machines.values():
            corners = self.corners(roof)
            for (x0, y0), (x1, y1) in pairwise(corners):
                steps = max(1, round((x1 - x0) / 4))
                for step in range(steps + 1):
                    x, y = x0 + (x1 - x0) * step / steps, y0 + (y1 - y0) * step / steps
                    self.taken.append((x - 2, y - 2, x + 2, y + 2))
        for work in points:
            for x, y in spots(machines, self, work):
                self.taken.append((x - 6, y - 6, x + 6, y + 6))


def background(
    machines: Mapping[str, Roofline], axes: Axes, works: Sequence[Work], bytes_of: str
) -> list[Mark]:
    """Axes, roofs and ridges, and a legend for the points."""
    marks: list[Mark] = []
    for at in decades(axes.x_range):
        x, text = axes.x(at), format_intensity(at)
        marks.append(line(x, TOP, x, BOTTOM, opacity=0.5))
        if x + text_width(text, 11) / 2 <= WIDTH:
            marks.append(_small(x, BOTTOM + 16, text, "middle"))
    for at in decades(axes.y_range):
        y = axes.y(at)
        marks.append(line(LEFT, y, RIGHT, y, opacity=0.5))
        marks.append(_small(LEFT - 8, y + 4, format_si(at, "FLOP/s"), "end"))
    per = "byte of memory traffic" if bytes_of == "memory" else "byte sent"
    marks.append(_small((LEFT + RIGHT) / 2, BOTTOM + 36, f"FLOP per {per}", "middle"))
    for index, roof in enumerate(machines.values()):
        marks += _roof(axes, roof, DASHES[index % len(DASHES)])
    return marks + _peaks(machines, axes) + _ridges(machines, axes) + _legend(works)


def _roof(axes: Axes, roof: Roofline, dash: str) -> list[Mark]:
    """The slope and the flat part, and a line from the ridge down to the axis."""
    (x0, y0), (x, y), (x1, _) = axes.corners(roof)
    d = f"M{x0:.1f} {y0:.1f}L{x:.1f} {y:.1f}L{x1:.1f} {y:.1f}"
    return [
        Path(d=f"M{x:.1f} {y:.1f}L{x:.1f} {BOTTOM:.1f}", stroke="muted", dash="2 4"),
        Path(d=d, stroke="text", stroke_width=2.0, dash=dash),
    ]


def _peaks(machines: Mapping[str, Roofline], axes: Axes) -> list[Mark]:
    """Each flat part with its machine and peak; with the peak alone if machines share it."""
    names: dict[float, list[str]] = {}
    for name, roof in machines.items():
        names.setdefault(roof.flops_per_s, []).append(name)
    marks: list[Mark] = []
    for peak, sharing in sorted(names.items(), reverse=True):
        text = format_si(peak, "FLOP/s")
        if len(sharing) == 1 and sharing[0]:
            text = f"{sharing[0]}, {text}"
        y, width = axes.y(peak), text_width(text, 11)
        for base in (y - 7, y + 15, y + 29, y - 21):
            if axes.claim(RIGHT - width, base, width):
                marks += written(RIGHT - width, base, text, anchor="end")
                break
    return marks


def _ridges(machines: Mapping[str, Roofline], axes: Axes) -> list[Mark]:
    """Each ridge's FLOP per byte above the axis."""
    marks: list[Mark] = []
    for name, roof in sorted(machines.items(), key=lambda each: each[1].ridge, reverse=True):
        value = format_intensity(roof.ridge)
        text = f"{name if len(machines) > 1 else 'ridge'}: {value}"
        x, width = axes.x(roof.ridge) + 4, text_width(text, 11)
        left = min(x, RIGHT - width)
        base = BOTTOM - 7
        while base > TOP and not axes.claim(left, base, width):
            base -= 14
        marks += written(left, base, text, weight=600)
    return marks


def written(
    left: float, base: float, text: str, *, weight: int = 400, anchor: str = "start"
) -> list[Mark]:
    """Text on the page's color, so that no line crosses it."""
    width = text_width(text, 11)
    x = left if anchor == "start" else left + width
    return [
        Rect(x=left - 2, y=base - 11, width=width + 4, height=14, fill="surface", opacity=0.8),
        Text(x=x, y=base, text=text, size=11, weight=weight, anchor=anchor),
    ]


def _legend(works: Sequence[Work]) -> list[Mark]:
    """What the colors of the points mean."""
    marks: list[Mark] = [disc(LEFT + 5, 12, PREDICTED), _small(LEFT + 16, 16, "at most", "start")]
    if any(work.seconds is not None for work in works):
        marks += [disc(LEFT + 89, 12, MEASURED), _small(LEFT + 100, 16, "measured", "start")]
    return marks


def compared_with(machines: Mapping[str, Roofline], work: Work, moves: bool) -> dict[str, Roofline]:
    """The machines on whose roofs a point is drawn: those that it belongs to; for one that does not
    move and was measured, only the first, where it was measured."""
    names = [name for name in machines if not work.machines or name in work.machines]
    return {name: machines[name] for name in (names if moves or work.seconds is None else names[:1])}


def spots(
    machines: Mapping[str, Roofline], axes: Axes, work: Work, *, moves: bool = False
) -> list[tuple[float, float]]:
    """Where a point is drawn: first what was measured, then the roof of each machine."""
    heights = [] if work.flops_per_s is None else [work.flops_per_s]
    heights += [
        roof.attainable_flops_per_s(work.intensity)
        for roof in compared_with(machines, work, moves).values()
    ]
    x = axes.x(work.intensity)
    return [(x, axes.y(each)) for each in heights]


def point(
    machines: Mapping[str, Roofline], axes: Axes, work: Work, *, moves: bool = False
) -> list[Mark]:
    """A point with its label; one that was measured is joined to the roof of its machine."""
    found = spots(machines, axes, work, moves=moves)
    (x, y), measured = found[0], work.seconds is not None
    marks: list[Mark] = [disc(*each, PREDICTED) for each in found[measured:]]
    if measured:
        joint = line(x, y, *found[1], stroke="muted")
        marks = [joint, *marks, disc(x, y, MEASURED)]
    if moves:
        marks = [line(x, TOP, x, BOTTOM, stroke="muted", opacity=0.7), *marks]
    return marks + axes.label(x, y, work.name, moves=moves)


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
