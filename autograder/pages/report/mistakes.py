"""The named mistakes of a class, counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from autograder.grading.record.record import Record
from autograder.pages.report.course import exercise_of


@dataclass(frozen=True)
class Mistake:
    exercise: str
    mistake: str
    students: int
    cases: int
    only_hidden: bool  # no visible case shows it


def count_mistakes(records: Sequence[Record]) -> list[Mistake]:
    """The most frequent first."""
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
    return sorted(mistakes, key=lambda m: (-m.students, m.exercise, m.mistake))
