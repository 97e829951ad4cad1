"""The trusted copy of a lab: the notebook that students were given, made from its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader import utils
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import ClearOutput, ClearSolutions, ComputeChecksums, LockCells
from traitlets.config import Configurable

from autograder.grading.course_error import CourseError


def load_template(owner: Configurable, resources: dict[str, Any]) -> NotebookNode:
    """The released lab: answers cleared, every cell with its own id, checksums as released.

    ``owner`` carries nbgrader's configuration.  Raises CourseError.
    """
    lab, name = resources["nbgrader"]["assignment"], resources["nbgrader"]["notebook"]
    course = CourseDirectory(parent=owner)
    path = Path(course.format_path(course.source_directory, ".", lab)) / f"{name}.ipynb"
    try:
        notebook = nbformat.read(path, as_version=4)
    except FileNotFoundError as error:
        raise CourseError(f"{path} is missing: run `python -m autograder build`") from error
    for step in (LockCells, ClearSolutions, ClearOutput, ComputeChecksums):
        notebook, _ = step(parent=owner).preprocess(notebook, {})
    _require_same_points(notebook, resources)
    return notebook


def _require_same_points(template: NotebookNode, resources: dict[str, Any]) -> None:
    """The gradebook must contain this version of the lab, or scores would be lost."""
    lab, name = resources["nbgrader"]["assignment"], resources["nbgrader"]["notebook"]
    graded = [cell.metadata.nbgrader for cell in template.cells if utils.is_grade(cell)]
    ours = {meta.grade_id: float(meta.points) for meta in graded}
    with Gradebook(resources["nbgrader"]["db_url"]) as gradebook:
        try:
            recorded = gradebook.find_notebook(name, lab).grade_cells
            theirs = {cell.name: float(cell.max_score) for cell in recorded}
        except MissingEntry:
            theirs = {}
    if ours != theirs:
        changed = ", ".join(sorted({cell for cell, _ in ours.items() ^ theirs.items()}))
        other = f"contains another version of {lab} (it differs in {changed})"
        found = other if theirs else f"does not contain {lab} yet"
        raise CourseError(f"the gradebook {found}: run `nbgrader generate_assignment {lab}`")
