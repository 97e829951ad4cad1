"""What a regrade would change, before it changes anything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autograder.grading.record.record import Record


@dataclass(frozen=True)
class Change:
    student: str
    before: float
    after: float
    answers: tuple[str, ...]  # "ring_all_reduce 3 → 5"

    def __str__(self) -> str:
        points = f"{self.before:g} → {self.after:g} ({self.after - self.before:+g})"
        return f"{self.student}: {points}: {', '.join(self.answers)}"


def changes(records: Iterable[Record], scores: dict[str, dict[str, float | None]]) -> list[Change]:
    """Of the automatic points; ``scores``: writer.Writer.scores(). Who loses most comes first."""
    found = []
    for record in records:
        before = {cell: scores.get(record.student, {}).get(cell) or 0.0 for cell in record.points}
        answers = tuple(
            f"{cell.removeprefix('check_')} {before[cell]:g} → {points:g}"
            for cell, points in sorted(record.points.items())
            if before[cell] != points
        )
        if answers:
            total = sum(record.points.values())
            found.append(Change(record.student, sum(before.values()), total, answers))
    return sorted(found, key=lambda change: (change.after - change.before, change.student))
