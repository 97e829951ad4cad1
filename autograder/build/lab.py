"""What a lab promises its students has to be what the checker decides."""

from __future__ import annotations

from pathlib import Path

from nbformat import NotebookNode

from autograder import exercises
from autograder.build.text import SourceError
from autograder.grading.submission.template import checks_of


def require_exercises(source: Path, notebook: NotebookNode) -> None:
    """Every check cell names an exercise and its points; raises SourceError."""
    points = {
        cell.metadata.nbgrader.grade_id: cell.metadata.nbgrader.points
        for cell in notebook.cells
        if cell.metadata.get("nbgrader", {}).get("grade")
    }
    seen: set[str] = set()
    for grade_id, check in checks_of(notebook).items():
        cell = f"{source}, cell {grade_id!r}"
        try:
            worth = exercises.load(check.exercise).points
        except KeyError as error:
            raise SourceError(f"{cell}: {error.args[0]}") from error
        if points[grade_id] != worth:
            raise SourceError(
                f"{cell}: says {points[grade_id]} points, its exercise is worth {worth:g}"
            )
        if check.exercise in seen:
            raise SourceError(f"{cell}: {check.exercise} is checked by an earlier cell, too")
        seen.add(check.exercise)
