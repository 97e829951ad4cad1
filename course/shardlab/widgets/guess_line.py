"""A guess drawn as a line over axes, and the answer on the same axes.

``guess_line.js`` has the same functions; a test compares them.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardlab.widgets.scene import Mark, Path, Text, line
from shardlab.widgets.verdict import format_amount

HEIGHT = 232.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 612.0, 30.0, 184.0


def circle(x: float, y: float, color: str) -> Path:
    return Path(d=f"M{x - 6:.2f} {y:.2f}a6 6 0 1 0 12 0a6 6 0 1 0 -12 0Z", fill=color)


def diamond(x: float, y: float, color: str) -> Path:
    d = f"M{x:.2f} {y - 7:.2f}L{x + 7:.2f} {y:.2f}L{x:.2f} {y + 7:.2f}L{x - 7:.2f} {y:.2f}Z"
    return Path(d=d, fill=color, stroke="surface")


def axes_marks(labels: Sequence[str], axis: str, top: float, unit: str) -> list[Mark]:
    """The axes: 0 to ``top`` upward, and one position for each label from left to right."""
    marks: list[Mark] = []
    for amount in (0.0, top / 2, top):
        y = y_of(amount, top)
        marks.append(line(LEFT, y, RIGHT, y))
        text = format_amount(amount, unit) if amount else "0"
        marks.append(Text(x=LEFT - 10, y=y + 4, text=text, size=12, anchor="end", fill="muted"))
    for index, label in enumerate(labels):
        x = x_of(index, len(labels))
        marks.append(Text(x=x, y=BOTTOM + 20, text=label, size=12, anchor="middle"))
    middle = (LEFT + RIGHT) / 2
    marks.append(Text(x=middle, y=BOTTOM + 40, text=axis, size=12, anchor="middle", fill="muted"))
    return marks


def line_marks(values: Sequence[float], top: float, color: str, *, is_guess: bool) -> list[Mark]:
    """One line through all values: diamonds for a guess, circles for the answer."""
    points = [(x_of(index, len(values)), y_of(v, top)) for index, v in enumerate(values)]
    d = "M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in points)
    shape = diamond if is_guess else circle
    dash = "6 4" if is_guess else ""
    return [
        Path(d=d, stroke=color, stroke_width=2.0, dash=dash),
        *(shape(x, y, color) for x, y in points),
    ]


def x_of(index: int, count: int) -> float:
    return LEFT + (RIGHT - LEFT) * (index + 0.5) / count


def y_of(amount: float, top: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * amount / top
