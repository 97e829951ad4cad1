"""The marks of the tensor split. ``tensor_split_marks.js`` makes the same; a test compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardlab.display.palette import MEASURED, PREDICTED, ink_on, op_color, rank_color
from shardlab.widgets.scene import Mark, Rect, Text, text_width
from shardlab.widgets.tensor_split_model import (
    COLUMNS,
    CUTS,
    PARTIAL,
    REPLICATED,
    ROWS,
    Cut,
    Step,
    pass_bytes,
    shape_of,
    step_bytes,
    weight_bytes,
)
from shardlab.widgets.units import format_bytes

WIDTH, HEIGHT = 800.0, 486.0
LEFT = 92.0  # names of the passes are to the left
SIDE_LENGTH = {"T": 110.0, "D": 76.0, "4D": 150.0}  # in pixels, not to scale
GAP = 36.0  # between matrices, for a sign
ROW_CENTERS = (109.0, 315.0)  # of forward and backward
PILL_OFFSET = 82.0  # of the collectives, below a row's center
BARS = 440.0  # bytes sent, as bars
BARS_LEFT, BARS_RIGHT = 250.0, 560.0
Measured = tuple[float, float]  # bytes sent by each rank, forward and backward
Box = tuple[float, float, float, float]  # x, y, width, height


def boxes_of(cut: Cut) -> dict[str, Box]:
    """The box of each matrix, and below it of its gradient."""
    total = sum(SIDE_LENGTH[sides[1]] for sides in cut.matrices.values())
    total += GAP * (len(cut.matrices) - 1)
    x = LEFT + (WIDTH - LEFT - total) / 2
    found = {}
    for name, (rows, columns) in cut.matrices.items():
        width, height = SIDE_LENGTH[columns], SIDE_LENGTH[rows]
        for key, middle in ((name, ROW_CENTERS[0]), (f"d{name}", ROW_CENTERS[1])):
            found[key] = (x, middle - height / 2, width, height)
        x += width + GAP
    return found


def marks_of(settings: Mapping[str, Any]) -> list[Mark]:
    """The matrices after a step, and the collectives up to then."""
    cut, n = CUTS[settings["cut"]], settings["ranks"]
    layouts, boxes = cut.layouts_after(settings["step"]), boxes_of(cut)
    marks: list[Mark] = []
    for name, (x, y, width, height) in boxes.items():
        rows, columns = shape_of(name, cut, settings)
        marks += [
            Text(x=x, y=y - 18, text=name, size=13, weight=600),
            Text(x=x, y=y - 5, text=f"{rows} × {columns}", size=11, fill="muted"),
        ]
        how = layouts.get(name)
        if how is None:
            marks.append(
                Rect(x=x, y=y, width=width, height=height, stroke="rule", dash="3 4", radius=2)
            )
        elif how == REPLICATED:
            marks.append(
                Rect(x=x, y=y, width=width, height=height, fill="text", opacity=0.16, radius=2)
            )
            marks.append(_centered((x, y, width, height), "all ranks", "muted"))
        else:
            for rank in range(n):
                box = part_box(x, y, width, height, how, rank, n)
                marks.append(_sheet(box, rank) if how == PARTIAL else _part(box, rank))
                marks += _rank_number(box, how, rank)
            if how == PARTIAL:
                marks.append(_centered(box, "partial", ink_on(rank_color(n - 1))))
    marks += signs_of(cut, boxes)
    for step in cut.steps[: settings["step"] + 1]:
        marks += _pill(step, boxes, settings)
    return marks


def part_box(x: float, y: float, width: float, height: float, how: str, rank: int, n: int) -> Box:
    """Where a rank's part of a matrix is drawn; partial sums are stacked, the last one in front.

    rank0 | rank1 | rank2 (columns), one above the other (rows)
    """
    if how == COLUMNS:
        return x + width * rank / n, y, width / n, height
    if how == ROWS:
        return x, y + height * rank / n, width, height / n
    off = min(5.0, 24.0 / max(n - 1, 1))
    back = n - 1 - rank
    shrink = off * (n - 1)
    return x + off * back, y + shrink - off * back, width - shrink, height - shrink


def _part(box: Box, rank: int) -> Mark:
    x, y, width, height = box
    return Rect(
        x=x + 0.5, y=y + 0.5, width=width - 1, height=height - 1, fill=rank_color(rank), radius=2
    )


def _sheet(box: Box, rank: int) -> Mark:
    x, y, width, height = box
    return Rect(
        x=x, y=y, width=width, height=height, fill=rank_color(rank), stroke="surface", radius=2
    )


def _rank_number(box: Box, how: str, rank: int) -> list[Mark]:
    x, y, width, height = box
    if how == PARTIAL or min(width, height) < 11:
        return []
    ink = ink_on(rank_color(rank))
    middle, base = x + width / 2, y + height / 2 + 4
    return [Text(x=middle, y=base, text=str(rank), size=11, anchor="middle", fill=ink)]


def _centered(box: Box, text: str, fill: str) -> Mark:
    x, y, width, height = box
    return Text(
        x=x + width / 2, y=y + height / 2 + 4, text=text, size=11, anchor="middle", fill=fill
    )


def signs_of(cut: Cut, boxes: Mapping[str, Box]) -> list[Mark]:
    marks: list[Mark] = []
    for name, sign in zip(list(cut.matrices)[1:], cut.signs, strict=True):
        x = boxes[name][0] - GAP / 2
        y = ROW_CENTERS[0] + 5
        marks.append(Text(x=x, y=y, text=sign, size=16, anchor="middle", fill="muted"))
        if sign == "→":
            marks.append(Text(x=x, y=y - 14, text="GELU", size=11, anchor="middle", fill="muted"))
        y = ROW_CENTERS[1] + 5
        marks.append(Text(x=x, y=y, text="←", size=16, anchor="middle", fill="muted"))
    return marks


def _pill(step: Step, boxes: Mapping[str, Box], settings: Mapping[str, Any]) -> list[Mark]:
    """The collective, below the matrix that it completes."""
    if not step.op:
        return []
    (name,) = step.layouts
    x, _, width, _ = boxes[name]
    text = f"{step.op.replace('_', '-')} {format_bytes(step_bytes(step, settings))}"
    room = text_width(text, 11) + 12
    left = min(max(x + width / 2 - room / 2, 0), WIDTH - room)
    top = ROW_CENTERS[step.backward] + PILL_OFFSET
    color = op_color(step.op)
    return [
        Rect(x=left, y=top, width=room, height=19, fill=color, radius=9.5),
        Text(
            x=left + room / 2, y=top + 13.5, text=text, size=11, anchor="middle", fill=ink_on(color)
        ),
    ]


def background() -> list[Mark]:
    """The marks that do not depend on settings."""
    return [
        Text(x=0, y=ROW_CENTERS[0] + 4, text="forward", weight=600),
        Text(x=0, y=ROW_CENTERS[1] + 4, text="backward", weight=600),
        Text(x=0, y=BARS + 4, text="sent by each rank", weight=600),
    ]


def bars_of(settings: Mapping[str, Any], measured: Measured | None) -> list[Mark]:
    """Bytes of both passes, predicted and measured, and the weights on each rank."""
    predicted = pass_bytes(settings)
    max_bytes = max(*predicted, *(measured or (0.0,)), 1.0)
    marks: list[Mark] = []
    for index, name in enumerate(("forward", "backward")):
        y = BARS + 22 * index
        marks.append(Text(x=BARS_LEFT - 10, y=y + 4, text=name, size=11, anchor="end"))
        lines: Sequence[tuple[float, str, float]] = [(predicted[index], PREDICTED, -7)]
        if measured:
            lines = [*lines, (measured[index], MEASURED, 1)]
        for value, color, off in lines:
            length = value / max_bytes * (BARS_RIGHT - BARS_LEFT)
            marks.append(
                Rect(
                    x=BARS_LEFT, y=y + off, width=max(length, 1), height=7 if measured else 14,
                    fill=color,
                )
            )  # fmt: skip
        text = format_bytes(predicted[index])
        if measured:
            text += f", measured {format_bytes(measured[index])}"
        marks.append(Text(x=BARS_RIGHT + 8, y=y + 4, text=text, size=11))
    total = weight_bytes(settings)
    text = f"weights {format_bytes(total / settings['ranks'])} of {format_bytes(total)}"
    marks.append(Text(x=0, y=BARS + 26, text=text, size=11, fill="muted"))
    return marks
