"""How a class did in one lab: counts, and by name only those whom somebody should look at."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autograder.grading.record.record import (
    INFRASTRUCTURE_ERROR,
    RESOURCE_LIMIT,
    STATES,
    TAMPERING,
    Record,
)
from autograder.pages.report.course import NOT_GRADED, NOT_HANDED_IN, Lab, exercise_of
from autograder.pages.scores import Scores

BINS = 10
MOST_MISTAKES = 15
TO_LOOK_AT = (TAMPERING, INFRASTRUCTURE_ERROR, RESOURCE_LIMIT)


@dataclass(frozen=True)
class ExerciseResult:
    """Of those who handed in. Its counts add up to them."""

    name: str
    max_points: float
    full: int
    part: int
    none: int
    unwritten: int
    waits: int
    mean: float  # points, without those that wait


@dataclass(frozen=True)
class Mistake:
    exercise: str
    mistake: str
    students: int
    cases: int
    only_hidden: bool  # no student could see it with the visible cases


@dataclass(frozen=True)
class Times:
    """Seconds (or bytes) over the class."""

    what: str
    median: float
    p95: float
    most: float
    unit: str = "s"


@dataclass(frozen=True)
class Summary:
    lab: str
    students: int
    handed_in: int  # and graded
    states: tuple[tuple[str, int], ...]  # those that occur
    waits: int  # submissions of which a person has yet to grade something
    late: int
    max_points: float
    totals: tuple[float, ...]  # of those who handed in, sorted
    exercises: tuple[ExerciseResult, ...]
    mistakes: tuple[Mistake, ...]  # the most frequent first
    times: tuple[Times, ...]
    look_at: tuple[tuple[str, str, str], ...]  # student, state, reason
    flagged: tuple[tuple[str, str], ...]  # student, what the source shows: no proof of anything

    @property
    def bins(self) -> list[int]:
        """How many totals fall in each tenth of the points; extra credit in the last."""
        counts = [0] * BINS
        for total in self.totals:
            share = total / self.max_points if self.max_points else 0.0
            counts[min(int(share * BINS), BINS - 1)] += 1
        return counts


def summarize(lab: Lab) -> Summary:
    handed_in = [scores for scores in lab.scores if scores.handed_in]
    counts = Counter(lab.state(scores) for scores in lab.scores)
    order = [*reversed(STATES), "graded without a record", NOT_GRADED, NOT_HANDED_IN]
    records = list(lab.records.values())
    return Summary(
        lab=lab.name,
        students=len(lab.scores),
        handed_in=len(handed_in),
        states=tuple((state, counts[state]) for state in order if counts[state]),
        waits=sum(scores.waits > 0 for scores in handed_in),
        late=sum(scores.penalty > 0 for scores in handed_in),
        max_points=max((scores.max_points for scores in lab.scores), default=0.0),
        totals=tuple(sorted(scores.total for scores in handed_in)),
        exercises=tuple(_exercise(cell, handed_in, lab.records) for cell in lab.cells),
        mistakes=tuple(_mistakes(records)),
        times=tuple(_times(records)),
        look_at=tuple(
            (repr(name), NOT_GRADED, f"The name of this folder {why}: rename it, and grade.")
            for name, why in lab.refused.items()
        )
        + tuple(
            (record.student, record.state, record.reason)
            for state in TO_LOOK_AT
            for record in sorted(records, key=lambda record: record.student)
            if record.state == state
        ),
        flagged=tuple(
            (record.student, flag)
            for record in sorted(records, key=lambda record: record.student)
            for flag in record.flags
        ),
    )


def _exercise(cell: str, handed_in: Sequence[Scores], records: dict[str, Record]) -> ExerciseResult:
    marks = {scores.student: scores.marks.get(cell) for scores in handed_in}
    known = {student: mark for student, mark in marks.items() if mark is not None}
    final = {student: mark for student, mark in known.items() if not mark.waits}
    unwritten = {
        student
        for student, mark in final.items()
        if mark.points <= 0 and _verdict(records.get(student), cell).get("unwritten")
    }
    full = sum(mark.points >= mark.max_points for mark in final.values())
    none = sum(mark.points <= 0 for mark in final.values()) - len(unwritten)
    points = [mark.points for mark in final.values()]
    return ExerciseResult(
        name=exercise_of(cell),
        max_points=max((mark.max_points for mark in known.values()), default=0.0),
        full=full,
        part=len(final) - full - none - len(unwritten),
        none=none,
        unwritten=len(unwritten),
        waits=len(known) - len(final),
        mean=statistics.fmean(points) if points else 0.0,
    )


def _mistakes(records: Sequence[Record]) -> list[Mistake]:
    students: dict[tuple[str, str], set[str]] = defaultdict(set)
    cases: Counter[tuple[str, str]] = Counter()
    seen: set[tuple[str, str]] = set()
    for record in records:
        for cell, verdict in record.verdicts.items():
            # A stub is no mistake, and has a column of its own.
            for case in [] if verdict["unwritten"] else verdict["cases"]:
                if case["passed"] or not case["was_run"] or not case["mistake"]:
                    continue
                key = (exercise_of(cell), case["mistake"])
                students[key].add(record.student)
                cases[key] += 1
                if not case["hidden"]:
                    seen.add(key)
    found = [
        Mistake(
            exercise, mistake, len(who), cases[exercise, mistake], (exercise, mistake) not in seen
        )
        for (exercise, mistake), who in students.items()
    ]
    return sorted(found, key=lambda m: (-m.students, m.exercise, m.mistake))[:MOST_MISTAKES]


def _times(records: Sequence[Record]) -> list[Times]:
    told = (
        ("the notebook's cells", "ran_s", "s"),
        ("the checks", "decided_s", "s"),
        ("processor time", "cpu_s", "s"),
        ("memory at most", "peak_bytes", "B"),
    )
    times = []
    for what, key, unit in told:
        values = sorted(record.timing[key] for record in records if key in record.timing)
        if values:
            p95 = values[min(int(0.95 * len(values)), len(values) - 1)]
            times.append(Times(what, statistics.median(values), p95, values[-1], unit))
    return times


def _verdict(record: Record | None, cell: str) -> dict[str, Any]:
    return record.verdicts.get(cell, {}) if record else {}


def as_text(summary: Summary) -> str:
    """For a terminal."""
    states = ", ".join(f"{count} {state}" for state, count in summary.states)
    lines = [f"{summary.lab}: {summary.students} students ({states})"]
    if summary.totals:
        lines.append(
            f"  points: median {statistics.median(summary.totals):.4g} of {summary.max_points:g}, "
            f"from {summary.totals[0]:.4g} to {summary.totals[-1]:.4g}; {summary.late} late"
        )
    if summary.waits:
        lines.append(f"  {summary.waits} wait for a person to grade something")
    width = max((len(exercise.name) for exercise in summary.exercises), default=0)
    heads = "full  part  none  stub  waits   mean"
    lines += ["", f"  {'exercise':<{width}}  {heads}"]
    for e in summary.exercises:
        lines.append(
            f"  {e.name:<{width}}  {e.full:>4}  {e.part:>4}  {e.none:>4}  {e.unwritten:>4}  "
            f"{e.waits:>5}  {e.mean:>5.2f} of {e.max_points:g}"
        )
    if summary.mistakes:
        lines += ["", "  students  mistake"]
        for m in summary.mistakes:
            only = " (in hidden cases only)" if m.only_hidden else ""
            lines.append(f"  {m.students:>8}  {m.exercise}: {m.mistake}{only}")
    if summary.times:
        lines += ["", "  for one submission       median      95 %    at most"]
        for t in summary.times:
            figures = "  ".join(f"{amount(v, t.unit):>8}" for v in (t.median, t.p95, t.most))
            lines.append(f"  {t.what:<22}  {figures}")
    if summary.look_at:
        lines += ["", "  to look at"]
        lines += [f"  {student}: {state}. {reason}" for student, state, reason in summary.look_at]
    if summary.flagged:
        lines += ["", "  to read: sources that look odd, which proves nothing"]
        lines += [f"  {student}: {flag}" for student, flag in summary.flagged]
    return "\n".join(lines)


def amount(value: float, unit: str) -> str:
    if unit == "B":
        return f"{value / 2**20:.0f} MiB"
    return f"{value:.1f} s"
