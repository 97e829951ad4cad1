"""The roofline plot: what machines can attain at most, and where computations are below that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar

from shardlab.estimate.roofline import Roofline
from shardlab.estimate.work import Work
from shardlab.widgets import roofline_plot_marks as drawing
from shardlab.widgets.picture import Adjustable, module
from shardlab.widgets.roofline_plot_marks import HEIGHT, WIDTH, Axes, format_intensity
from shardlab.widgets.scene import Mark, as_json, to_svg
from shardlab.widgets.units import format_seconds, format_si

BOUND = {"memory": "memory-bound", "link": "communication-bound"}
SMALL_PRINT = {
    "memory": "Lines: the most FLOP/s that arithmetic and memory allow. Dotted: the ridge, from "
    "which on arithmetic sets the time.",
    "link": "Lines: the most FLOP/s if traffic overlaps all arithmetic. Dotted: the ridge, from "
    "which on traffic hides behind arithmetic.",
}


class RooflinePlot(Adjustable):
    """Made by `roofline_plot`. ``settings`` may be read and set: at, the value of the slider."""

    _esm: ClassVar[str] = module("roofline_plot.js")

    def __init__(
        self,
        machines: Mapping[str, Roofline],
        points: Sequence[Work],
        moving: Mapping[float, Work],
        slider: str,
        at: float | None,
        bytes_of: str,
    ) -> None:
        self.machines, self.points, self.moving = machines, points, moving
        self.slider, self.bytes_of = slider, bytes_of
        works = [*points, *moving.values()]
        axes = Axes.around(machines, works)
        axes.avoid(machines, points)
        self._background = [
            *drawing.background(machines, axes, works, bytes_of),
            *drawing.trail(axes, moving.values()),
            *(mark for each in points for mark in drawing.point(machines, axes, each)),
        ]
        # Each on its own, so that their labels avoid those of the background only.
        self._at = {
            value: drawing.point(machines, deepcopy(axes), work, moves=True)
            for value, work in moving.items()
        }
        scene = {
            "width": WIDTH,
            "height": HEIGHT,
            "radius": drawing.RADIUS,
            "background": as_json(self._background),
            "points": [self._item(axes, each) for each in points],
            "slider": slider,
            # As a list: JSON has no numbers as keys.
            "moving": [
                {
                    "at": value,
                    "marks": as_json(self._at[value]),
                    **self._item(axes, work, moves=True),
                }
                for value, work in moving.items()
            ],
            "roofs": self._roofs(),
            "headings": ["", "FLOP", "bytes", "FLOP/byte", *self._columns()],
            "small": SMALL_PRINT[bytes_of],
        }
        super().__init__(scene=scene, settings={"at": at})

    def check(self, settings: dict[str, Any]) -> None:
        if self.moving and settings["at"] not in self.moving:
            known = ", ".join(f"{value:g}" for value in self.moving)
            raise ValueError(f"at={settings['at']!r}: must be one of {known}")

    def static_svg(self) -> str:
        marks: list[Mark] = [*self._background, *self._at.get(self.settings["at"], [])]
        title, footer = "Roofline", SMALL_PRINT[self.bytes_of]
        return to_svg(marks, WIDTH, HEIGHT, title=title, subtitle=self._position(), footer=footer)

    def summary(self) -> str:
        return f"{self._roofs()} {len(self.points) + bool(self.moving)} points"

    def alternative(self) -> str:
        words = [self._roofs(), *(f"{self.describe(each)}." for each in self.points)]
        if self.moving:
            words.append(f"{self.describe(self.moving[self.settings['at']], moves=True)}.")
        return " ".join(words)

    def describe(self, work: Work, *, moves: bool = False) -> str:
        """What the line below the picture says about a point."""
        at_least = [
            self._against(name, roof, work, work.seconds if index == 0 else None)
            for index, (name, roof) in enumerate(
                drawing.compared_with(self.machines, work, moves).items()
            )
        ]
        return "".join([f"{work.name}: {format_intensity(work.intensity)} FLOP/byte", *at_least])

    def _against(self, name: str, roof: Roofline, work: Work, seconds: float | None) -> str:
        at_least_s = roof.seconds(work.flops, work.moved_bytes)
        bound = "compute-bound" if work.intensity >= roof.ridge else BOUND[self.bytes_of]
        words = f"{f'. {name}: ' if name else ', '}{bound}, at least {format_seconds(at_least_s)}"
        if self.bytes_of == "link":
            compute_s = work.flops / roof.flops_per_s
            sent_s = work.moved_bytes / roof.memory_bytes_per_s
            words = (
                f"{words} (arithmetic {format_seconds(compute_s)}, "
                f"traffic {format_seconds(sent_s)})"
            )
        if seconds is not None:
            share = f"{at_least_s / seconds:.0%}".replace("%", " %")
            words = f"{words}, measured {format_seconds(seconds)}: {share} of the roof"
        return words

    def _roofs(self) -> str:
        moves = "from memory" if self.bytes_of == "memory" else "over the link"
        return " ".join(
            f"{name or 'Machine'}: at most {format_si(roof.flops_per_s, 'FLOP/s')} and "
            f"{format_si(roof.memory_bytes_per_s, 'B/s')} {moves}, ridge at "
            f"{format_intensity(roof.ridge)} FLOP/byte."
            for name, roof in self.machines.items()
        )

    def _position(self) -> str:
        return f"{self.slider} = {self.settings['at']:,}" if self.moving else ""

    def _columns(self) -> list[str]:
        return [*(f"at least{f', {name}' * bool(name)}" for name in self.machines), "measured"]

    def _item(self, axes: Axes, work: Work, *, moves: bool = False) -> dict[str, Any]:
        its_own = work.machines or self.machines
        seconds = [
            format_seconds(roof.seconds(work.flops, work.moved_bytes)) if name in its_own else ""
            for name, roof in self.machines.items()
        ]
        return {
            "name": work.name,
            "intensity": work.intensity,
            "spots": drawing.spots(self.machines, axes, work, moves=moves),
            "text": self.describe(work, moves=moves),
            "row": [
                work.name,
                format_si(work.flops, "FLOP"),
                format_si(work.moved_bytes, "B"),
                format_intensity(work.intensity),
                *seconds,
                "" if work.seconds is None else format_seconds(work.seconds),
            ],
        }


def roofline_plot(
    machines: Roofline | Mapping[str, Roofline],
    points: Sequence[Work] = (),
    *,
    moving: Mapping[float, Work] | None = None,
    slider: str = "rows",
    at: float | None = None,
    bytes_of: str = "memory",
) -> RooflinePlot:
    """Draw the roofs of machines, and points below them.

    machines: one, or several by name. What was measured was measured on the first.
    points: drawn on each roof; measured ones where they were measured and on the first roof.
        ``work.on("NVLink")`` belongs to the roof of this name only; several names may be given.
    moving: one more point for each value of a slider, which starts at ``at``, or the first value.
        It is drawn on each roof. Small points show all those that were measured.
    slider: its name.
    bytes_of: "memory", or "link" if bytes are sent: `Device.over` makes its roofline.

    Raises ValueError if nothing or something impossible is to be drawn.
    """
    named = {"": machines} if isinstance(machines, Roofline) else dict(machines)
    values = {_plain(value): work for value, work in (moving or {}).items()}
    if not named or not (points or values):
        raise ValueError("roofline_plot needs at least one machine and one point")
    if bytes_of not in BOUND:
        raise ValueError(f'bytes_of={bytes_of!r}: must be "memory" or "link"')
    for work in [*points, *values.values()]:
        if unknown := set(work.machines) - named.keys():
            raise ValueError(f"{work.name}: no machine is called {', '.join(sorted(unknown))}")
    start = next(iter(values), None) if at is None else _plain(at)
    if start is not None and start not in values:
        raise ValueError(f"at={at!r}: must be one of {[*values]}")
    return RooflinePlot(named, list(points), values, slider, start, bytes_of)


def _plain(value: float) -> float:
    """Without NumPy's types, which JSON does not have."""
    return int(value) if value == int(value) else float(value)
