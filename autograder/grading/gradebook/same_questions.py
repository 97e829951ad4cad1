"""Refuses to add or remove a lab's questions once it has grades.

nbgrader refuses as well, but after it has removed the released lab, and with a traceback.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from nbgrader import utils
from nbgrader.api import MissingEntry
from nbgrader.converters.base import NbGraderException
from nbgrader.coursedir import CourseDirectory

from autograder.build.lab import BuiltNotebooks
from autograder.grading.gradebook.database import GradebookError, opened, prepare

WHAT_TO_DO = """\
{lab} has grades of {count} in the gradebook, so no question can be added or removed ({how}).
Nothing was released or changed. What is possible, each time followed by
`python -m autograder build`, `nbgrader generate_assignment {lab}` and
`python -m autograder grade {lab} --regrade`:
- to change the points of a question: change only `points`;
- to drop a question: keep its cells and set its points to 0;
- to add a question: put it into a new lab, and take it out of this one."""


class GradedNotebooks(BuiltNotebooks):
    """nbgrader's generate_assignment creates its exporter before it removes or writes anything.

    Raises NbGraderException, which nbgrader reports.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if getattr(self.parent, "no_database", False):
            return
        for notebooks in getattr(self.parent, "assignments", {}).values():
            for path in map(Path, notebooks):
                if why := self._why_not(path):
                    self.log.error(why)
                    raise NbGraderException(why)

    def _why_not(self, path: Path) -> str:
        course, lab = CourseDirectory(parent=self.parent), path.parent.name
        cells = nbformat.read(path, as_version=4).cells
        new = {
            cell.metadata.nbgrader.grade_id: (utils.is_grade(cell), utils.is_solution(cell))
            for cell in cells
            if utils.is_grade(cell) or utils.is_solution(cell) or utils.is_locked(cell)
        }
        try:
            prepare(course.db_url)
            with opened(course) as gradebook:
                found = gradebook.find_notebook(path.stem, lab)
                graded = {cell.name for cell in found.grade_cells}
                solved = {cell.name for cell in found.solution_cells}
                names = [cell.name for cell in found.source_cells]
                old = {name: (name in graded, name in solved) for name in names}
                count = len(found.submissions)
        except MissingEntry:
            return ""
        except GradebookError as error:
            return str(error)
        if new == old or not count:
            return ""
        changed = sorted(name for name in new.keys() & old.keys() if new[name] != old[name])
        parts = {
            "added": sorted(new.keys() - old.keys()),
            "removed": sorted(old.keys() - new.keys()),
            "of another kind": changed,
        }
        how = "; ".join(f"{what}: {', '.join(names)}" for what, names in parts.items() if names)
        who = f"{count} student{'' if count == 1 else 's'}"
        return WHAT_TO_DO.format(lab=lab, count=who, how=how)
