"""Writes points into a lab's notebook: those of each check, from its exercise, and a table of all.

Points are declared only in the exercise. A written question has no exercise: its points are in the
header of its cell.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from nbformat import NotebookNode

from autograder import exercises
from autograder.build.cells import find_check, is_check
from autograder.build.text import SourceError

TABLE = "<!-- table of points -->"  # in a lab's first cell: the table goes here
HEADING = re.compile(r"^## \d+ · (.+)$", re.MULTILINE)


def add_points(source: Path, notebook: NotebookNode) -> None:
    """Set the points of every check cell, and replace TABLE.

    Raises SourceError if a check cell names no exercise, or one that an earlier cell checks.
    """
    title, rows, seen = "", list[str](), set[str]()
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and (headings := HEADING.findall(cell.source)):
            title = headings[-1]
        meta = cell.metadata.get("nbgrader", {})
        if is_check(cell):
            name, where = find_check(cell.source).exercise, f"{source}, cell {meta.grade_id!r}"
            try:
                meta.points = exercises.points_of(name)
            except KeyError as error:
                raise SourceError(f"{where}: {error.args[0]}") from error
            is_number = isinstance(meta.points, int | float) and meta.points is not True
            if not (is_number and 0 <= meta.points < math.inf):
                raise SourceError(
                    f"{where}: {name} has points={meta.points!r}: write a number of 0 (the "
                    "question was dropped) or more"
                )
            if name in seen:
                raise SourceError(f"{where}: an earlier cell already checks {name}")
            seen.add(name)
            answer = f"`{name.partition('.')[2]}`"
            what = title[0].lower() + title[1:] if answer in title else answer
        else:
            what = "a question"
        if meta.get("grade"):
            rows.append(f"| {len(rows) + 1} · {what} | {meta.points:g} |")
    table = "\n".join(["| exercise | points |", "|---|---|", *rows])
    notebook.cells[0].source = notebook.cells[0].source.replace(TABLE, table)
