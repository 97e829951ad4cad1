"""Points as CSV, for a spreadsheet or a learning platform: a row for each student and lab."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from autograder.pages.report.course import Lab, exercise_of
from autograder.pages.scores import Scores

BEFORE = ("student", "last_name", "first_name", "lab", "state", "submitted_utc")
AFTER = ("to_grade_by_hand", "late_penalty", "total", "max")


def export(labs: Sequence[Lab], to: Path | None) -> None:
    for lab in labs:
        for name, why in lab.unusable.items():
            print(f"{lab.name}: {name!r} is left out, because its name {why}", file=sys.stderr)
    if to is None:
        _write(labs, sys.stdout)
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    with to.open("w", newline="", encoding="utf-8") as file:
        _write(labs, file)
    print(f"wrote {to}")


def _write(labs: Sequence[Lab], out: TextIO) -> None:
    """With several labs an exercise's column is named LAB.EXERCISE.

    An answer that waits for manual grading is empty, not 0, and not in the total.
    """
    several = len(labs) > 1
    columns = [(lab, cell) for lab in labs for cell in lab.cells]
    names = [f"{lab.name}.{exercise_of(c)}" if several else exercise_of(c) for lab, c in columns]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*BEFORE, *names, *AFTER])
    for lab in labs:
        for scores in lab.scores:
            person = map(_text, (scores.student, scores.last_name, scores.first_name))
            at = f"{scores.submitted_at:%Y-%m-%d %H:%M:%S}" if scores.submitted_at else ""
            points = [_points(scores, cell) if other is lab else "" for other, cell in columns]
            sums = map(_number, (scores.penalty, scores.total, scores.max_points))
            row = [*person, lab.name, lab.state(scores), at, *points, scores.pending, *sums]
            writer.writerow(row)


def _points(scores: Scores, cell: str) -> str:
    mark = scores.marks.get(cell)
    return "" if mark is None or mark.is_pending else _number(mark.points)


def _number(value: float) -> str:
    return f"{round(value, 4):.10g}"


def _text(value: str) -> str:
    """Prefix with an apostrophe what a spreadsheet would evaluate as a formula."""
    return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
