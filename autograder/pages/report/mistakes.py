"""Counts the named mistakes of a class."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autograder.course.tries import Tries
from autograder.grading.record.record import Record
from autograder.pages.report.read_labs import exercise_of
from autograder.pages.report.tries import median_tries


@dataclass(frozen=True)
class Mistake:
    exercise: str
    mistake: str
    students: int
    cases: int
    only_hidden: bool  # no visible case shows it
    # Median of the students whose own check showed it before it first passed; None if none.
    tries: float | None = None


def count_mistakes(
    records: Sequence[Record], tries: Mapping[str, Mapping[str, Tries]]
) -> list[Mistake]:
    """The most frequent first. ``tries``: {student: {answer: ...}}, graded or not."""
    found: dict[tuple[str, str], list[tuple[str, bool]]] = defaultdict(list)
    for record in records:
        for cell, verdict in record.verdicts.items():
            # A stub is not a mistake; it has its own column.
            for case in [] if verdict["unwritten"] else verdict["cases"]:
                if not case["passed"] and case["was_run"] and case["mistake"]:
                    key = exercise_of(cell), case["mistake"]
                    found[key].append((record.student, case["hidden"]))
    mistakes = []
    for (exercise, mistake), cases in found.items():
        students, hidden = zip(*cases, strict=True)
        known = [of_student[exercise] for of_student in tries.values() if exercise in of_student]
        median = median_tries(one.mistakes.get(mistake, 0) for one in known)
        counts = len(set(students)), len(cases)
        mistakes.append(Mistake(exercise, mistake, *counts, all(hidden), median))
    return sorted(mistakes, key=lambda m: (-m.students, m.exercise, m.mistake))
