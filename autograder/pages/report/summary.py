"""How a class did in one lab: counts, and names of only those who need attention."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autograder.grading.command.outcomes import names
from autograder.grading.late.late_work import show_time
from autograder.grading.record import record as states
from autograder.grading.record.record import STATES, Record
from autograder.pages.report.items import Item, analyze
from autograder.pages.report.mistakes import Mistake, count_mistakes
from autograder.pages.report.read_labs import (
    NOT_GRADED,
    NOT_SUBMITTED,
    RESUBMITTED,
    Lab,
    exercise_of,
)
from autograder.pages.scores import Mark, Scores

BINS = 10
LATE_WORK = ("student", "due", "submitted", "days late", "free days", "penalty")
MAX_MISTAKES = 15
NEEDS_ATTENTION = (
    states.TAMPERING,
    states.INFRASTRUCTURE_ERROR,
    states.UNREADABLE,
    states.RESOURCE_LIMIT,
)


@dataclass(frozen=True)
class ExerciseResult:
    """Results in one exercise, of the students who submitted."""

    name: str
    max_points: float
    counts: Counter[str]  # {"full", "part", "none", "unwritten", "pending": students}
    mean: float | None  # points, without pending answers; None if all are pending

    @property
    def mean_words(self) -> str:
        if self.mean is None:
            return "not graded yet"
        return f"{self.mean:.2f} of {self.max_points:g}"


@dataclass(frozen=True)
class Summary:
    lab: str
    students: int
    states: list[tuple[str, list[str]]]  # those that occur, and the students in each
    pending: int  # submissions with an answer to grade manually
    late: int
    late_work: list[tuple[str, str, str, str, str, str]]  # see LATE_WORK
    max_points: float
    so_far: list[tuple[float, float]]  # of those with a graded answer: points, maximum
    exercises: list[ExerciseResult]
    items: list[Item]
    mistakes: list[Mistake]  # the most frequent first
    times: list[tuple[str, list[str]]]  # label; median, 95 %, max
    needs_attention: list[tuple[str, str, str]]  # student, state, reason
    flagged: list[tuple[str, str]]  # student, what the source shows: proves nothing
    earlier: dict[str, list[str]]  # {student: names of folders in grading/earlier}
    absent: tuple[str, ...]  # students, of the roster if there is one, who submitted nothing

    @property
    def shares(self) -> list[float]:
        """Sorted; 1.0 is full points for the answers graded so far; extra credit may exceed it."""
        return sorted(total / maximum for total, maximum in self.so_far)

    @property
    def median(self) -> str:
        """The median so far: in points if all students have the same maximum, else as a share.

        An answer that is not graded yet must not count as 0 points.
        """
        return self._points(statistics.median(self.shares))

    @property
    def extent(self) -> str:
        return f"from {self._points(self.shares[0])} to {self._points(self.shares[-1])}"

    @property
    def of_points(self) -> str:
        """What the points of ``median`` and ``extent`` are out of."""
        if not self.is_in_points:
            return "of the points graded so far"
        maximum = f"of {self.so_far[0][1]:g}"
        return f"{maximum} points graded so far" if self.pending else maximum

    @property
    def bins(self) -> list[int]:
        """The number of shares in each tenth; extra credit counts in the last."""
        counts = [0] * BINS
        for share in self.shares:
            counts[min(int(share * BINS), BINS - 1)] += 1
        return counts

    @property
    def is_in_points(self) -> bool:
        return len({maximum for _, maximum in self.so_far}) == 1

    def _points(self, share: float) -> str:
        if self.is_in_points:
            return f"{share * self.so_far[0][1]:.4g}"
        return f"{100 * share:.0f} %"


def summarize(lab: Lab) -> Summary:
    submitted = [scores for scores in lab.scores if scores.has_submission]
    in_state = defaultdict(list)
    for scores in lab.scores:
        in_state[lab.state(scores)].append(scores.student)
    order = [*reversed(STATES), "graded without a record", RESUBMITTED, NOT_GRADED, NOT_SUBMITTED]
    records = list(lab.records.values())
    misnamed = [
        (repr(name), NOT_GRADED, f"The folder name {why}: rename the folder and grade again.")
        for name, why in lab.unusable.items()
    ]
    odd = [(r.student, r.state, r.reason) for r in records if r.state in NEEDS_ATTENTION]
    mistakes = count_mistakes(records, lab.tries)
    odd.sort(key=lambda row: NEEDS_ATTENTION.index(row[1]))
    return Summary(
        lab=lab.name,
        students=len(lab.scores),
        states=[(state, in_state[state]) for state in order if in_state[state]],
        pending=sum(scores.pending > 0 for scores in submitted),
        late=sum(scores.penalty > 0 for scores in submitted),
        late_work=list(_late_work(lab)),
        max_points=max((scores.max_points for scores in lab.scores), default=0.0),
        so_far=[(s.total, s.max_so_far) for s in submitted if s.max_so_far],
        exercises=[_exercise(cell, submitted, lab.records) for cell in lab.cells],
        items=analyze(lab.cells, submitted, mistakes, lab.tries),
        mistakes=mistakes[:MAX_MISTAKES],
        times=list(_times(records)),
        needs_attention=[*misnamed, *odd],
        flagged=[(record.student, flag) for record in records for flag in record.flags],
        earlier=lab.earlier,
        absent=lab.absent,
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
        mean=statistics.fmean(points) if points else None,
    )


def _outcome(mark: Mark, record: Record | None, cell: str) -> str:
    verdict = record.verdicts.get(cell, {}) if record else {}
    return "unwritten" if mark.outcome == "none" and verdict.get("unwritten") else mark.outcome


def _late_work(lab: Lab) -> Iterator[tuple[str, str, str, str, str, str]]:
    """Students who have an extension, or whose lateness costs points or free days.

    The penalty is the one in the gradebook.
    """
    for s in lab.late.values():
        if s.extension or s.free_days or s.penalty or s.stored_penalty:
            due = show_time(s.due_at) + (" (extended)" if s.extension else "")
            penalty = f"{s.stored_penalty:g}"
            if not s.is_stored:
                penalty += f", should be {s.penalty:g}: run python -m autograder late"
            submitted = show_time(s.submitted_at)
            yield s.student, due, submitted, str(s.days), str(s.free_days), penalty


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
    """The summary as text for a terminal."""
    lines = [f"{summary.lab}: {summary.students} students", ""]
    width = max((len(state) for state, _ in summary.states), default=0)
    for state, students in summary.states:
        who = "" if state == states.GRADED else f"  {names(students)}"
        lines.append(f"  {state:<{width}}  {len(students):>5}{who}".rstrip())
    if summary.so_far:
        points = f"median {summary.median} {summary.of_points}, {summary.extent}"
        lines += ["", f"  points: {points}; {summary.late} late"]
    if summary.pending:
        lines.append(
            f"  {summary.pending} with an answer that is not graded yet: it needs manual grading"
        )
    width = max((len(exercise.name) for exercise in summary.exercises), default=0)
    lines += ["", f"  {'exercise':<{width}}  full  part  none  stub  not graded yet   mean"]
    for e in summary.exercises:
        counts = "  ".join(f"{e.counts[part]:>4}" for part in ("full", "part", "none", "unwritten"))
        lines.append(f"  {e.name:<{width}}  {counts}  {e.counts['pending']:>14}   {e.mean_words}")
    heads = f"mean share of the points  {'discrimination':>26}  tries until it passed"
    lines += ["", f"  {'exercise':<{width}}  {heads}"]
    for item in summary.items:
        share = "" if item.mean_share is None else f"{item.mean_share:.2f}"
        found = "" if item.discrimination is None else f"{item.discrimination:.2f}"
        line = f"  {item.name:<{width}}  {share:>24}  {found or item.why_not:>26}"
        lines.append(f"{line}  {item.tries_words}".rstrip())
    if summary.mistakes:
        lines += ["", "  students  tries  mistake"]
        for m in summary.mistakes:
            only = " (in hidden cases only)" if m.only_hidden else ""
            took = "" if m.tries is None else f"{m.tries:g}"
            lines.append(f"  {m.students:>8}  {took:>5}  {m.exercise}: {m.mistake}{only}")
    if summary.times:
        lines += ["", "  per submission            median      95 %       max"]
        for what, figures in summary.times:
            lines.append(f"  {what:<22}  {'  '.join(f'{figure:>8}' for figure in figures)}")
    if summary.late_work:
        rows = [LATE_WORK, *summary.late_work]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += ["", "  late work and extensions"]
        for row in rows:
            cells = (f"{c:<{w}}" for c, w in zip(row, widths, strict=True))
            lines.append(f"  {'  '.join(cells)}".rstrip())
    if summary.needs_attention:
        lines += ["", "  needs attention"]
        lines += [
            f"  {student}: {state}. {reason}" for student, state, reason in summary.needs_attention
        ]
    if summary.flagged:
        lines += ["", "  sources to review: they look suspicious, which proves nothing"]
        lines += [f"  {student}: {flag}" for student, flag in summary.flagged]
    if summary.earlier:
        lines += ["", f"  earlier submissions, in grading/earlier/STUDENT/{summary.lab}"]
        lines += [f"  {who}: {len(t)} ({', '.join(t)})" for who, t in summary.earlier.items()]
    if summary.absent:
        lines += ["", f"  submitted nothing: {', '.join(summary.absent)}"]
    return "\n".join(lines)
