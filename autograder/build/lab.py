"""Builds a lab's notebook from its source, and checks before a release or grading that it was built
from the current version of that source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from nbconvert.exporters import NotebookExporter
from nbformat import NotebookNode
from nbgrader.converters.base import NbGraderException

from autograder.build.cells import END_LINKS
from autograder.build.navigation import without_links
from autograder.build.points import add_points
from autograder.build.rubric import require_rubric
from autograder.build.text import SourceError, notebook_from_text

REBUILD = "python -m autograder build"


def lab_from_text(source: Path) -> NotebookNode:
    """Build the lab in ``source``, with the points of its exercises; raises SourceError."""
    notebook = notebook_from_text(source)
    add_points(source, notebook)
    require_rubric(source.parent, notebook)
    return notebook


def require_built(path: Path) -> None:
    """Raise SourceError unless ``path`` is what `python -m autograder build` makes from its source.

    Links to other notebooks may differ. A notebook without a source is not checked.
    """
    source = path.with_name(f"{path.stem}.nb.py")
    if not source.exists():
        return
    try:
        made = lab_from_text(source)
    except SourceError as error:
        raise SourceError(f"{error}\nFix this, then run `{REBUILD}`.") from error
    try:
        built = nbformat.read(path, as_version=4)
    except (OSError, ValueError) as error:
        raise SourceError(f"{path} cannot be read: run `{REBUILD}`") from error
    if not _agrees(made, built):
        current = f"the current {source.name} and exercises"
        raise SourceError(f"{path} was not built from {current}: run `{REBUILD}`")


class BuiltNotebooks(NotebookExporter):
    """Stops nbgrader's generate_assignment if a lab is out of date: it creates its exporter before
    it removes or writes anything. Raises NbGraderException, which nbgrader reports."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for notebooks in getattr(self.parent, "assignments", {}).values():
            for path in notebooks:
                try:
                    require_built(Path(path))
                except SourceError as error:
                    self.log.error("%s\nNothing was released or changed.", error)
                    raise NbGraderException(str(error)) from error


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
