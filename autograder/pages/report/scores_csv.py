"""Points as CSV, for a spreadsheet or a learning platform: one row per student and lab."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TextIO

from autograder.grading.csv_tables import escape_formula, write_atomically
from autograder.grading.late.standings import Standing
from autograder.pages.report.read_labs import NOT_SUBMITTED, Lab, exercise_of
from autograder.pages.scores import Scores

BEFORE = ("student", "last_name", "first_name", "lab", "state", "submitted_utc")
AFTER = ("to_grade_by_hand", "late_penalty", "total", "max_so_far", "max")
LATE = ("due_utc", "extended", "days_late", "free_days_used")


def export(labs: Sequence[Lab], to: Path | None) -> None:
    for lab in labs:
        for name, why in lab.unusable.items():
            print(f"{lab.name}: {name!r} is left out, because its name {why}", file=sys.stderr)
    if to is None:
        _write(labs, sys.stdout)
        return
    text = io.StringIO()
    _write(labs, text)
    write_atomically(to, text.getvalue().encode())
    print(f"wrote {to}")


def _write(labs: Sequence[Lab], out: TextIO) -> None:
    """With several labs, an exercise's column is named LAB.EXERCISE.

    An answer that waits for manual grading is empty, not 0, and counts in neither ``total`` nor
    ``max_so_far``; both are empty if nothing in a submission is graded yet.
    """
    several = len(labs) > 1
    columns = [(lab, cell) for lab in labs for cell in lab.cells]
    names = [f"{lab.name}.{exercise_of(c)}" if several else exercise_of(c) for lab, c in columns]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*BEFORE, *names, *AFTER, *LATE])
    for lab in labs:
        for scores in lab.scores:
            person = map(escape_formula, (scores.student, scores.last_name, scores.first_name))
            at = _time(scores.submitted_at)
            points = [_points(scores, cell) if other is lab else "" for other, cell in columns]
            sums = [number(scores.penalty), *_so_far(lab, scores), number(scores.max_points)]
            late = _late(lab.late.get(scores.student))
            row = [*person, lab.name, lab.state(scores), at, *points, scores.pending, *sums, *late]
            writer.writerow(row)


def _points(scores: Scores, cell: str) -> str:
    mark = scores.marks.get(cell)
    return "" if mark is None or mark.is_pending else number(mark.points)


def _so_far(lab: Lab, scores: Scores) -> tuple[str, str]:
    if scores.max_so_far:
        return number(scores.total), number(scores.max_so_far)
    is_missing = lab.state(scores) == NOT_SUBMITTED
    return ("0", number(scores.max_points)) if is_missing else ("", "")


def number(value: float) -> str:
    """The number without trailing zeros, with at most four decimal places."""
    return f"{round(value, 4):.10g}"


def _late(standing: Standing | None) -> list[object]:
    if standing is None:
        return [""] * len(LATE)
    extended = "yes" if standing.extension else ""
    return [_time(standing.due_at), extended, standing.days, standing.free_days]


def _time(time: datetime | None) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}" if time else ""
