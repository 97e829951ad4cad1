"""How a class did in one lab: counts, and names only of those that need attention."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autograder.grading.record import record as states
from autograder.grading.record.record import STATES, Record
from autograder.pages.report.course import NOT_GRADED, NOT_SUBMITTED, Lab, exercise_of
from autograder.pages.scores import Mark, Scores

BINS = 10
MOST_MISTAKES = 15
NEEDS_ATTENTION = (states.TAMPERING, states.INFRASTRUCTURE_ERROR, states.RESOURCE_LIMIT)


@dataclass(frozen=True)
class ExerciseResult:
    """Of the students who submitted."""

    name: str
    max_points: float
    counts: Counter[str]  # {"full", "part", "none", "unwritten", "pending": students}
    mean: float  # points, without pending answers


@dataclass(frozen=True)
class Mistake:
    exercise: str
    mistake: str
    students: int
    cases: int
    only_hidden: bool  # no visible case shows it


@dataclass(frozen=True)
class Summary:
    lab: str
    students: int
    states: list[tuple[str, int]]  # those that occur
    pending: int  # submissions with an answer to grade manually
    late: int
    max_points: float
    totals: list[float]  # of those who submitted, sorted
    exercises: list[ExerciseResult]
    mistakes: list[Mistake]  # the most frequent first
    times: list[tuple[str, list[str]]]  # of what: median, 95 %, max
    needs_attention: list[tuple[str, str, str]]  # student, state, reason
    flagged: list[tuple[str, str]]  # student, what the source shows: proves nothing

    @property
    def median(self) -> float:
        return statistics.median(self.totals)

    @property
    def bins(self) -> list[int]:
        """How many totals fall in each tenth of the points; extra credit in the last."""
        counts = [0] * BINS
        for total in self.totals:
            share = total / self.max_points if self.max_points else 0.0
            counts[min(int(share * BINS), BINS - 1)] += 1
        return counts


def summarize(lab: Lab) -> Summary:
    submitted = [scores for scores in lab.scores if scores.has_submission]
    counts = Counter(lab.state(scores) for scores in lab.scores)
    order = [*reversed(STATES), "graded without a record", NOT_GRADED, NOT_SUBMITTED]
    records = list(lab.records.values())
    misnamed = [
        (repr(name), NOT_GRADED, f"The folder name {why}: rename the folder and grade again.")
        for name, why in lab.unusable.items()
    ]
    odd = [(r.student, r.state, r.reason) for r in records if r.state in NEEDS_ATTENTION]
    odd.sort(key=lambda row: NEEDS_ATTENTION.index(row[1]))
    return Summary(
        lab=lab.name,
        students=len(lab.scores),
        states=[(state, counts[state]) for state in order if counts[state]],
        pending=sum(scores.pending > 0 for scores in submitted),
        late=sum(scores.penalty > 0 for scores in submitted),
        max_points=max((scores.max_points for scores in lab.scores), default=0.0),
        totals=sorted(scores.total for scores in submitted),
        exercises=[_exercise(cell, submitted, lab.records) for cell in lab.cells],
        mistakes=_mistakes(records),
        times=list(_times(records)),
        needs_attention=[*misnamed, *odd],
        flagged=[(record.student, flag) for record in records for flag in record.flags],
    )


def _exercise(cell: str, submitted: Sequence[Scores], records: dict[str, Record]) -> ExerciseResult:
    marks = {scores.student: scores.marks[cell] for scores in submitted if cell in scores.marks}
    points = [mark.points for mark in marks.values() if not mark.is_pending]
    return ExerciseResult(
        name=exercise_of(cell),
        max_points=max((mark.max_points for mark in marks.values()), default=0.0),
        counts=Counter(
            _outcome(mark, records.get(student), cell) for student, mark in marks.items()
        ),
        mean=statistics.fmean(points) if points else 0.0,
    )


def _outcome(mark: Mark, record: Record | None, cell: str) -> str:
    verdict = record.verdicts.get(cell, {}) if record else {}
    return "unwritten" if mark.outcome == "none" and verdict.get("unwritten") else mark.outcome


def _mistakes(records: Sequence[Record]) -> list[Mistake]:
    found: dict[tuple[str, str], list[tuple[str, bool]]] = defaultdict(list)
    for record in records:
        for cell, verdict in record.verdicts.items():
            # A stub is not a mistake, and has a separate column.
            for case in [] if verdict["unwritten"] else verdict["cases"]:
                if not case["passed"] and case["was_run"] and case["mistake"]:
                    key = exercise_of(cell), case["mistake"]
                    found[key].append((record.student, case["hidden"]))
    mistakes = []
    for (exercise, mistake), cases in found.items():
        students, hidden = zip(*cases, strict=True)
        mistakes.append(Mistake(exercise, mistake, len(set(students)), len(cases), all(hidden)))
    return sorted(mistakes, key=lambda m: (-m.students, m.exercise, m.mistake))[:MOST_MISTAKES]


def _times(records: Sequence[Record]) -> Iterator[tuple[str, list[str]]]:
    for what, key, unit, size in (
        ("the notebook's cells", "ran_s", "{:.1f} s", 1),
        ("the checks", "decided_s", "{:.1f} s", 1),
        ("CPU time", "cpu_s", "{:.1f} s", 1),
        ("peak memory", "peak_bytes", "{:.0f} MiB", 2**20),
    ):
        values = sorted(record.timing[key] / size for record in records if key in record.timing)
        if values:
            p95 = values[min(int(0.95 * len(values)), len(values) - 1)]
            yield what, [unit.format(v) for v in (statistics.median(values), p95, values[-1])]


def as_text(summary: Summary) -> str:
    """For a terminal."""
    states = ", ".join(f"{count} {state}" for state, count in summary.states)
    lines = [f"{summary.lab}: {summary.students} students ({states})"]
    if summary.totals:
        lines.append(
            f"  points: median {summary.median:.4g} of {summary.max_points:g}, "
            f"from {summary.totals[0]:.4g} to {summary.totals[-1]:.4g}; {summary.late} late"
        )
    if summary.pending:
        lines.append(f"  {summary.pending} waiting for manual grading")
    width = max((len(exercise.name) for exercise in summary.exercises), default=0)
    lines += ["", f"  {'exercise':<{width}}  full  part  none  stub  pending   mean"]
    for e in summary.exercises:
        counts = "  ".join(f"{e.counts[part]:>4}" for part in ("full", "part", "none", "unwritten"))
        mean = f"{e.mean:>5.2f} of {e.max_points:g}"
        lines.append(f"  {e.name:<{width}}  {counts}  {e.counts['pending']:>7}  {mean}")
    if summary.mistakes:
        lines += ["", "  students  mistake"]
        for m in summary.mistakes:
            only = " (in hidden cases only)" if m.only_hidden else ""
            lines.append(f"  {m.students:>8}  {m.exercise}: {m.mistake}{only}")
    if summary.times:
        lines += ["", "  per submission            median      95 %       max"]
        for what, figures in summary.times:
            lines.append(f"  {what:<22}  {'  '.join(f'{figure:>8}' for figure in figures)}")
    if summary.needs_attention:
        lines += ["", "  needs attention"]
        lines += [
            f"  {student}: {state}. {reason}" for student, state, reason in summary.needs_attention
        ]
    if summary.flagged:
        lines += ["", "  sources to review: they look suspicious, which proves nothing"]
        lines += [f"  {student}: {flag}" for student, flag in summary.flagged]
    return "\n".join(lines)
