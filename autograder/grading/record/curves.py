"""An answer's values after each step, and the expected ones: curves as static SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from autograder.exercise import Curves
from shardlab.display.palette import PREDICTED, rank_color
from shardlab.widgets.scene import Mark, Path, Rect, Text, line, text_width, to_svg
from shardlab.widgets.time_axis import time_ticks

WIDTH = 800.0
LEFT, RIGHT = 66.0, 784.0
TOP, BOTTOM = 26.0, 246.0
EXPECTED_WIDTH = 6.0  # drawn below the others, so that it shows where they agree


def draw(curves: Curves) -> str:
    """Raises ValueError if there is nothing to draw."""
    every = [*([curves.expected] if curves.expected else []), *curves.got.values()]
    seen = [value for values in every for value in values if math.isfinite(value)]
    seen += [] if curves.level is None else [curves.level]
    if not seen or not any(curves.got.values()):
        raise ValueError("no finite number")
    low, high = min(seen), max(seen)
    room = 0.08 * (high - low) or 1.0
    low, high = low - room, high + room
    steps = max(map(len, every))

    def x(step: float) -> float:
        return LEFT + (RIGHT - LEFT) * step / steps

    def y(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low)

    marks: list[Mark] = [
        Rect(x=LEFT, y=TOP, width=RIGHT - LEFT, height=BOTTOM - TOP, stroke="rule")
    ]
    for tick in time_ticks(low, high, 5):
        marks.append(line(LEFT, y(tick), RIGHT, y(tick), opacity=0.6))
        marks.append(
            Text(x=LEFT - 8, y=y(tick) + 4, text=f"{tick:.5g}", size=11, anchor="end", fill="muted")
        )
    for tick in time_ticks(0, steps, 8):
        marks.append(
            Text(x=x(tick), y=BOTTOM + 16, text=f"{tick:g}", size=11, anchor="middle", fill="muted")
        )
    names: dict[str, str] = {}  # {name: color}
    if curves.expected:
        d = _step_path(curves.expected, x, y)
        marks.append(Path(d=d, stroke=PREDICTED, stroke_width=EXPECTED_WIDTH))
        names["expected"] = PREDICTED
    if curves.level is not None:
        d = f"M{LEFT} {y(curves.level):.1f}H{RIGHT}"
        marks.append(Path(d=d, stroke=PREDICTED, stroke_width=2, dash="6 4"))
        names["expected at the end"] = PREDICTED
    for number, (name, values) in enumerate(curves.got.items()):
        names[name] = rank_color(number)
        marks.append(Path(d=_step_path(values, x, y), stroke=names[name], stroke_width=2))
    at = LEFT
    for name, color in names.items():
        marks.append(Rect(x=at, y=4, width=10, height=10, fill=color, radius=2))
        marks.append(Text(x=at + 16, y=13, text=name, size=11, fill="muted"))
        at += 34 + text_width(name, 11)
    return to_svg(marks, WIDTH, BOTTOM + 22, title=curves.title, subtitle="after each step")


def _step_path(
    values: Sequence[float], x: Callable[[float], float], y: Callable[[float], float]
) -> str:
    """Each value from its step to the next; nan and infinity leave a gap."""
    d, is_drawing = "", False
    for step, value in enumerate(values):
        if math.isfinite(value):
            d += f"{'V' if is_drawing else f'M{x(step):.1f} '}{y(value):.1f}H{x(step + 1):.1f}"
        is_drawing = math.isfinite(value)
    return d
