"""The class report as one self-contained page. Its two charts are static SVGs in the course's
colors; tables contain the same numbers."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from autograder.grading.command.outcomes import names
from autograder.pages.html.page import render, write_page
from autograder.pages.report import FOLDER
from autograder.pages.report.items import MIN_STUDENTS
from autograder.pages.report.read_labs import Lab
from autograder.pages.report.summary import ExerciseResult, Summary, as_text, summarize
from shardlab.display.palette import ERROR, MEASURED, OK, PREDICTED, WAIT, ink_on
from shardlab.widgets.scene import Mark, Rect, Text, line, text_width, to_svg

WIDTH = 800.0
ROW = 30.0
# {key of ExerciseResult.counts: (color, whether it is hatched, label)}
PARTS = {
    "full": (OK, False, "all points"),
    "part": (OK, True, "some"),
    "none": (ERROR, False, "none"),
    "unwritten": (WAIT, False, "not written"),
    "pending": (PREDICTED, False, "not graded yet"),
}


def report(labs: list[Lab], to: Path | None) -> None:
    """Write the page for the one lab to a file, and print the same as text."""
    (lab,) = labs
    summary = summarize(lab)
    charts = {"totals": Markup(_totals(summary)), "exercises": Markup(_exercises(summary))}
    path = to or FOLDER / f"{lab.name}.html"
    earlier = {
        student: [(time, _address(lab.history / student / lab.name / time, path)) for time in times]
        for student, times in lab.earlier.items()
    }
    page = render(
        "report/page.html", summary=summary, names=names, min_students=MIN_STUDENTS,
        earlier=earlier, **charts,
    )  # fmt: skip
    write_page(path, page)
    print(f"{as_text(summary)}\n\nwrote {path}")


def _address(folder: Path, page: Path) -> str:
    """The address for a link in ``page``: relative, so that the course's folder can be moved."""
    return quote(f"{os.path.relpath(folder.resolve(), page.resolve().parent)}/")


def _exercises(summary: Summary) -> str:
    """A bar for each exercise: how many students got all, some or none of its points."""
    left = 16 + max((text_width(e.name, 12) for e in summary.exercises), default=0.0)
    right = WIDTH - 92
    marks: list[Mark] = []
    for row, exercise in enumerate(summary.exercises):
        marks += _bar(exercise, row * ROW, left, right)
    bottom = len(summary.exercises) * ROW + 10
    x = left
    for part, (color, hatch, words) in PARTS.items():
        if any(e.counts[part] for e in summary.exercises):
            marks.append(Rect(x=x, y=bottom, width=10, height=10, fill=color, hatch=hatch))
            marks.append(Text(x=x + 16, y=bottom + 9, text=words, size=11, fill="muted"))
            x += 34 + text_width(words, 11)
    footer = "Inside each segment: number of students. On the right: mean points."
    return _chart(summary, marks, bottom, "Points by exercise", footer)


def _bar(exercise: ExerciseResult, top: float, left: float, right: float) -> list[Mark]:
    marks: list[Mark] = [
        Text(x=left - 12, y=top + 18, text=exercise.name, anchor="end"),
        Text(x=WIDTH, y=top + 18, text=exercise.mean_words, anchor="end", fill="muted"),
    ]
    x = left
    for part, (color, hatch, _) in PARTS.items():
        count = exercise.counts[part]
        width = (right - left) * count / max(exercise.counts.total(), 1)
        if not count:
            continue
        box = Rect(
            x=x, y=top + 4, width=max(width - 1, 0.5), height=ROW - 10, fill=color, hatch=hatch
        )
        marks.append(box)
        wide, middle = text_width(str(count), 11) + 6, x + width / 2
        if width > wide and hatch:
            marks.append(
                Rect(x=middle - wide / 2, y=top + 7, width=wide, height=14, fill="surface")
            )
        if width > wide:
            marks.append(_number(middle, top + 18, count, "text" if hatch else ink_on(color)))
        x += width
    return marks


def _number(x: float, y: float, value: object, fill: str = "text") -> Mark:
    return Text(x=x, y=y, text=str(value), size=11, anchor="middle", fill=fill)


def _totals(summary: Summary) -> str:
    """A histogram of the students' points."""
    bins = summary.bins
    height, bottom, left = 150.0, 168.0, 8.0
    step = (WIDTH - 2 * left) / len(bins)
    max_count = max(*bins, 1)
    marks: list[Mark] = []
    for index, count in enumerate(bins):
        x, bar_height = left + index * step, height * count / max_count
        y = bottom - bar_height
        marks.append(Rect(x=x + 2, y=y, width=step - 4, height=bar_height, fill=MEASURED, radius=2))
        if count:
            marks.append(_number(x + step / 2, y - 5, count))
    marks.append(line(left, bottom, WIDTH - left, bottom))
    for index in range(len(bins) + 1):
        share = index / len(bins)
        words = (
            f"{share * summary.so_far[0][1]:g}" if summary.is_in_points else f"{100 * share:g} %"
        )
        marks.append(_number(left + index * step, bottom + 16, words, "muted"))
    below = f"after late penalties, {summary.of_points}"
    footer = f"Above each bar: number of students. Below: points {below}."
    return _chart(summary, marks, bottom, "Points for the whole lab", footer)


def _chart(summary: Summary, marks: list[Mark], bottom: float, title: str, footer: str) -> str:
    subtitle = f"{len(summary.so_far)} students"
    return to_svg(marks, WIDTH, bottom + 22, title=title, subtitle=subtitle, footer=footer)
