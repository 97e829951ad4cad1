"""The summary that is printed after grading a class."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from autograder.grading.record.record import GRADED, STATES, UNREADABLE, Record

SLOWEST = 3
MAX_NAMES = 10  # in one line


@dataclass
class Outcome:
    """The result of one `grade` run. ``records``: one for each submission that can be graded."""

    lab: str
    unusable: dict[str, str] = field(default_factory=dict)  # {folder name: why}
    absent: Sequence[str] = ()  # students in the gradebook without a submission
    records: dict[str, Record] = field(default_factory=dict)
    new: set[str] = field(default_factory=set)  # graded in this run
    declined: set[str] = field(default_factory=set)  # regraded, but not to be written
    regraded: set[str] = field(default_factory=set)  # regraded in this run or before, written now
    older: set[str] = field(default_factory=set)  # graded by another version of the course
    not_written: dict[str, str] = field(default_factory=dict)  # {student: why}
    broken: dict[str, str] = field(default_factory=dict)  # {student: why the record is unreadable}
    regrade: bool = False  # asked for with --regrade
    took_s: float = 0.0

    @property
    def failed(self) -> list[Record]:
        return [record for record in self.records.values() if not record.is_final]


def table(outcome: Outcome) -> str:
    students = defaultdict(list)
    for student, record in sorted(outcome.records.items()):
        students[record.state].append(student)
    submissions = _count([*outcome.records, *outcome.unusable], "submission")
    now = []
    if count := len(outcome.new - outcome.declined):
        took, each_s = timedelta(seconds=round(outcome.took_s)), outcome.took_s / len(outcome.new)
        now.append(f"{count} graded now in {took} ({each_s:.1f} s each)")
    if outcome.regraded:
        now.append(f"{_count([*outcome.regraded], 'regrade')} written")
    if outcome.declined:
        now.append(f"{len(outcome.declined)} regraded, but not written")
    none = "nothing to grade"
    if outcome.regrade:
        none += ": what this version of the course has graded is not graded again"
    lines = [f"{outcome.lab}: {submissions}, {', '.join(now) or none}", ""]
    width = max(map(len, STATES))
    for state in reversed(STATES):
        who = "" if state == GRADED else f"  {names(students[state])}"
        lines.append(f"  {state:<{width}}  {len(students[state]):>5}{who}".rstrip())
    listed = {
        "slowest (without the workers' start)": _slowest(outcome),
        "0 points, because there is no notebook that can be read":
            [f"{student}: {record.reason}" for student, record in sorted(outcome.records.items())
             if record.state == UNREADABLE],
        "not graded: unusable folder name (rename the folder, then run the same command)":
            [f"{name!r} {why}" for name, why in outcome.unusable.items()],
        "not graded: the machine failed (nothing was written; the next run retries)":
            [f"{record.student}: {record.reason}" for record in outcome.failed],
        "graded, but not yet in the gradebook (the next run writes them)":
            [f"{student}: {why}" for student, why in sorted(outcome.not_written.items())],
        "graded again: unreadable record":
            [f"{student}: {why}" for student, why in sorted(outcome.broken.items())],
    }  # fmt: skip
    for title, rows in listed.items():
        lines += ["", f"{title}:", *(f"  {row}" for row in rows)] if rows else []
    if outcome.older:
        verb = "was" if len(outcome.older) == 1 else "were"
        lines += [
            "",
            f"{len(outcome.older)} {verb} graded by an older version: grade again with --regrade",
        ]
    if outcome.absent:
        who = f"{_count(outcome.absent, 'student')} in the gradebook without a submission for"
        lines += ["", f"{who} {outcome.lab}: {names(outcome.absent)}"]
    return "\n".join(lines)


def names(students: Sequence[str]) -> str:
    """ "ann, bob and 3 more", for a line of a table."""
    more = f" and {len(students) - MAX_NAMES} more" if students[MAX_NAMES:] else ""
    return ", ".join(students[:MAX_NAMES]) + more


def changes(records: Iterable[Record], scores: dict[str, dict[str, float | None]]) -> list[str]:
    """What a regrade would change: a line for each student whose automatic points change, the
    largest loss first.

    ``scores``: from writer.Writer.scores()
    """
    found = []
    for record in records:
        before = {cell: scores.get(record.student, {}).get(cell) or 0.0 for cell in record.points}
        answers = [
            f"{cell.removeprefix('check_')} {before[cell]:g} → {points:g}"
            for cell, points in sorted(record.points.items())
            if before[cell] != points
        ]
        if answers:
            old, new = sum(before.values()), sum(record.points.values())
            line = f"{record.student}: {old:g} → {new:g} ({new - old:+g}): {', '.join(answers)}"
            found.append((new - old, line))
    return [line for _, line in sorted(found)]


def _slowest(outcome: Outcome) -> list[str]:
    timings = [
        (student, outcome.records[student].timing) for student in outcome.new - outcome.declined
    ]
    spent = [(t.get("ran_s", 0.0) + t.get("decided_s", 0.0), student) for student, t in timings]
    most = sorted(spent, reverse=True)[:SLOWEST]
    return [f"{student}: {spent_s:.1f} s" for spent_s, student in most if spent_s]


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"
