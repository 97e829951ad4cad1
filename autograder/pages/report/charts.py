"""The report's two charts, as standing SVG in the course's colours. Tables beside them say the
same in numbers."""

from __future__ import annotations

from collections.abc import Sequence

from autograder.pages.report.summary import ExerciseResult, Summary
from shardlab.widgets.palette import ERROR, MEASURED, OK, PREDICTED, WAIT, ink_on
from shardlab.widgets.scene import Mark, Rect, Text, line, text_width, to_svg

WIDTH = 800.0
ROW = 30.0
# attribute of ExerciseResult: (colour, words)
PARTS = {
    "full": (OK, "all points"),
    "part": (MEASURED, "some"),
    "none": (ERROR, "none"),
    "unwritten": (WAIT, "not written"),
    "waits": (PREDICTED, "waits for a person"),
}


def exercises(summary: Summary) -> str:
    """A bar for each exercise: how many got all, some or none of its points."""
    left = 16 + max((text_width(e.name, 12) for e in summary.exercises), default=0.0)
    right = WIDTH - 92
    marks: list[Mark] = []
    for row, exercise in enumerate(summary.exercises):
        marks += _bar(exercise, row * ROW, left, right)
    used = [part for part in PARTS if any(getattr(e, part) for e in summary.exercises)]
    bottom = len(summary.exercises) * ROW + 10
    marks += _key(used, left, bottom)
    return to_svg(
        marks,
        WIDTH,
        bottom + 22,
        title="Points by exercise",
        subtitle=f"{summary.handed_in} students",
        footer="In each part: how many students. At the right: the mean of the points.",
    )


def _bar(exercise: ExerciseResult, top: float, left: float, right: float) -> list[Mark]:
    counts = [(part, getattr(exercise, part)) for part in PARTS]
    everybody = max(sum(count for _, count in counts), 1)
    mean = f"{exercise.mean:.2f} of {exercise.max_points:g}"
    marks: list[Mark] = [
        Text(x=left - 12, y=top + 18, text=exercise.name, anchor="end"),
        Text(x=WIDTH, y=top + 18, text=mean, anchor="end", fill="muted"),
    ]
    x = left
    for part, count in counts:
        if not count:
            continue
        width = (right - left) * count / everybody
        color = PARTS[part][0]
        marks.append(Rect(x=x, y=top + 4, width=max(width - 1, 0.5), height=ROW - 10, fill=color))
        if width > text_width(str(count), 11) + 6:
            at = x + width / 2
            ink = ink_on(color)
            marks.append(
                Text(x=at, y=top + 18, text=str(count), size=11, anchor="middle", fill=ink)
            )
        x += width
    return marks


def _key(parts: Sequence[str], x: float, y: float) -> list[Mark]:
    marks: list[Mark] = []
    for part in parts:
        color, words = PARTS[part]
        marks.append(Rect(x=x, y=y, width=10, height=10, fill=color, radius=2))
        marks.append(Text(x=x + 16, y=y + 9, text=words, size=11, fill="muted"))
        x += 34 + text_width(words, 11)
    return marks


def totals(summary: Summary) -> str:
    """How many students got how many points."""
    bins = summary.bins
    top, height, left = 18.0, 150.0, 8.0
    step = (WIDTH - 2 * left) / len(bins)
    most = max(*bins, 1)
    marks: list[Mark] = []
    for place, count in enumerate(bins):
        x, tall = left + place * step, height * count / most
        marks.append(
            Rect(
                x=x + 2, y=top + height - tall, width=step - 4, height=tall, fill=MEASURED, radius=2
            )
        )
        if count:
            y = top + height - tall - 5
            marks.append(Text(x=x + step / 2, y=y, text=str(count), size=11, anchor="middle"))
    marks.append(line(left, top + height, WIDTH - left, top + height))
    for place in range(len(bins) + 1):
        words = f"{summary.max_points * place / len(bins):g}"
        y = top + height + 16
        marks.append(
            Text(x=left + place * step, y=y, text=words, size=11, anchor="middle", fill="muted")
        )
    return to_svg(
        marks,
        WIDTH,
        top + height + 22,
        title="Points of the whole lab",
        subtitle=f"{len(summary.totals)} students",
        footer="Above each bar: how many students. Below: points, less what being late cost.",
    )
