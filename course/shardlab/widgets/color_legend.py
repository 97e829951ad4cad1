"""The color legend: every color and pattern of the course, with its meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardlab.display import palette
from shardlab.widgets.scene import Mark, Path, Rect, Text, text_width, to_svg

WIDTH = 630.0
NAMES_WIDTH = 130.0  # of the scales' names, to the left
ROW = 22.0
Entry = tuple[str, dict[str, Any]]  # meaning, look


@dataclass(frozen=True)
class ColorLegend:
    """Made by `color_legend`; notebooks show it in the page's theme."""

    svg: str

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return {
            "text/plain": "The colors of the course",
            "text/html": self.svg,
            "image/svg+xml": self.svg,
        }


def color_legend() -> ColorLegend:
    """A picture of every color and pattern, with its meaning."""
    marks: list[Mark] = []
    y = 4.0
    for scale, entries in scales().items():
        marks.append(Text(x=0, y=y + 11, text=scale, weight=600))
        x = NAMES_WIDTH
        for meaning, look in entries:
            room = 24 + text_width(meaning, 12) + 12
            if x + room > WIDTH:
                x, y = NAMES_WIDTH, y + ROW
            marks += [_sample(x, y, look), Text(x=x + 24, y=y + 11, text=meaning)]
            x += room
        y += ROW + 8
    svg = to_svg(marks, WIDTH, y - 8, title="One color, one meaning, in every picture")
    return ColorLegend(svg)


def scales() -> dict[str, list[Entry]]:
    """name: [(meaning, look)]"""
    return {
        "results": [
            ("predicted, simulated, ideal", {"fill": palette.PREDICTED}),
            ("measured", {"fill": palette.MEASURED}),
            ("waiting, idle", {"fill": palette.WAIT}),
            ("correct, fits, complete", {"fill": palette.OK}),
            ("error, does not fit", {"fill": palette.ERROR}),
            ("never ended", {"fill": palette.ERROR, "hatch": True}),
        ],
        "phases": [
            *_filled({**palette.PHASES, "weights": ""}),
            ("backward, weights only", {"fill": palette.PHASES["weights"]}),
        ],
        "states of a rank": [
            ("compute", {"fill": palette.STATES["compute"]}),
            ("overlapped", {"fill": palette.STATES["compute"], "hatch": True}),
            ("exposed", {"fill": palette.STATES["exposed"]}),
            ("loader", {"fill": palette.STATES["loader"]}),
        ],
        "memory": _filled(palette.MEMORY),
        "axes": _filled(palette.AXES),
        "work": _filled(palette.WORK),
        "calls": [
            *_filled(palette.CALLS),
            ("gathered, waits in its buffer", {"fill": palette.CALLS["all_gather"], "hatch": True}),
        ],
        "ranks": _filled({str(rank): color for rank, color in enumerate(palette.RANKS)}),
        "parts of a model": [
            *_filled({str(part): color for part, color in enumerate(palette.PARTS)}),
            ("outside the layers", {"fill": palette.OTHER_PART}),
            ("recomputed", {"fill": palette.PARTS[0], "hatch": True}),
            ("padding", {"fill": palette.WAIT, "hatch": True}),
        ],
        "lines": [
            ("predicted", {"stroke": palette.PREDICTED, "dash": "6 4"}),
            ("limit, such as a device's memory", {"stroke": "text", "dash": "6 4"}),
        ],
    }


def _filled(colors: Mapping[str, str]) -> list[Entry]:
    return [(name, {"fill": color}) for name, color in colors.items() if color]


def _sample(x: float, y: float, look: dict[str, Any]) -> Mark:
    if "stroke" in look:
        return Path(d=f"M{x} {y + 7}H{x + 20}", stroke_width=2, **look)
    return Rect(x=x, y=y, width=18, height=14, radius=2, **look)
