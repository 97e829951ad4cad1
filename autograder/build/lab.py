"""What must hold for a lab's notebook before it is released or graded: it was built from the
current version of its source, and its points are those of its exercises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
from nbconvert.exporters import NotebookExporter
from nbformat import NotebookNode
from nbgrader.converters.base import NbGraderException

from autograder import exercises
from autograder.build.navigation import without_links
from autograder.build.rubric import require_rubric
from autograder.build.text import SourceError, notebook_from_text
from autograder.grading.submission.template import END_LINKS, find_check, is_check

REBUILD = "python -m autograder build"
# Of the table in a lab's first cell: | 7 · a puzzle: `zero_bubble_schedule` | 5 |
TABLE_ROW = re.compile(r"^\| *\d+ · (?P<what>.*?) *\| *(?P<points>[\d.]+) *\|", re.MULTILINE)
ANSWER = re.compile(r"`(\w+)`")


def require_exercises(source: Path, notebook: NotebookNode) -> None:
    """Every check cell must name an exercise and its points, and a table of points and a
    rubric must agree.

    Raises SourceError.
    """
    seen: set[str] = set()
    for cell in filter(is_check, notebook.cells):
        name, meta = find_check(cell.source).exercise, cell.metadata.nbgrader
        where = f"{source}, cell {meta.grade_id!r}"
        try:
            worth = exercises.load(name).points
        except KeyError as error:
            raise SourceError(f"{where}: {error.args[0]}") from error
        if meta.points != worth:
            mismatch = f"has {meta.points} points, but its exercise is worth {worth:g}"
            raise SourceError(f"{where}: {mismatch}")
        if name in seen:
            raise SourceError(f"{where}: an earlier cell already checks {name}")
        seen.add(name)
    _require_table(source, notebook)
    require_rubric(source.parent, notebook)


def require_built(path: Path) -> None:
    """Raise SourceError unless ``path`` is what `python -m autograder build` makes from its source.

    The links to other notebooks may differ. A notebook without a source is not checked.
    """
    source = path.with_name(f"{path.stem}.nb.py")
    if not source.exists():
        return
    try:
        made = notebook_from_text(source)
        require_exercises(source, made)
    except SourceError as error:
        raise SourceError(f"{error}\nFix this, then run `{REBUILD}`.") from error
    try:
        built = nbformat.read(path, as_version=4)
    except (OSError, ValueError) as error:
        raise SourceError(f"{path} cannot be read: run `{REBUILD}`") from error
    if not _agrees(made, built):
        raise SourceError(f"{path} was not built from the current {source.name}: run `{REBUILD}`")


class BuiltNotebooks(NotebookExporter):
    """nbgrader's generate_assignment makes its exporter before it removes or writes anything: the
    last moment to stop it. Raises NbGraderException, which nbgrader reports."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for notebooks in getattr(self.parent, "assignments", {}).values():
            for path in notebooks:
                try:
                    require_built(Path(path))
                except SourceError as error:
                    self.log.error("%s\nNothing was released or changed.", error)
                    raise NbGraderException(str(error)) from error


def _require_table(source: Path, notebook: NotebookNode) -> None:
    first = notebook.cells[0].source if notebook.cells else ""
    table = [
        (answer[1] if (answer := ANSWER.search(row["what"])) else "", float(row["points"]))
        for row in TABLE_ROW.finditer(first)
    ]
    graded = [
        (exercises.load(find_check(cell.source).exercise).answer if is_check(cell) else "", points)
        for cell in notebook.cells
        if (points := float(cell.metadata.get("nbgrader", {}).get("points", 0.0)))
    ]
    if table and table != graded:
        rows = ", ".join(f"{name or 'a question'} {points:g}" for name, points in graded)
        raise SourceError(
            f"{source}, cell 1: its table of points must name what is graded, in this order: {rows}"
        )


def _agrees(made: NotebookNode, built: NotebookNode) -> bool:
    ours, theirs = made.cells, [cell for cell in built.cells if cell.id != END_LINKS]
    if len(ours) != len(theirs):
        return False
    # The build inserts links below the heading.
    theirs[0].source = without_links(theirs[0].source)
    ours[0].source = without_links(ours[0].source)
    keys = ("id", "cell_type", "metadata", "source")
    return all(
        one[key] == other[key] for one, other in zip(ours, theirs, strict=True) for key in keys
    )
