"""What a regrade would change, before it changes anything."""

from __future__ import annotations

from collections.abc import Iterable

from autograder.grading.record.record import Record


def changes(records: Iterable[Record], scores: dict[str, dict[str, float | None]]) -> list[str]:
    """A line for each student whose automatic points change, who loses most first.

    ``scores``: writer.Writer.scores()
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
