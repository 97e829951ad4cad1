"""Reading a notebook that may be anything at all."""

from __future__ import annotations

import os
import warnings
from typing import Any

import nbformat
from nbconvert.exporters import NotebookExporter
from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode

from autograder.grading.files import NotPlain, read_plain_file

MAX_BYTES = 20_000_000
UNREADABLE = "shardlab_unreadable"  # key of ``resources``: why, for the student


class Unreadable(Exception):
    """Why a file is not a notebook, in words for the student who handed it in."""


def read_submission(path: str) -> NotebookNode:
    """The notebook at ``path``, outputs and all; raises Unreadable."""
    try:
        content = read_plain_file(path, MAX_BYTES)
    except NotPlain as error:
        raise Unreadable(str(error)) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of ids missing or given twice: they are made anew
            notebook = nbformat.reads(content.decode("utf-8"), as_version=4)
        notebook.cells = [cell for cell in notebook.cells if _is_cell(cell)]
    except Exception as error:  # nbformat raises whatever the odd shape it met leads to
        raise Unreadable(f"it is not a Jupyter notebook ({type(error).__name__})") from error
    notebook.metadata = nbformat.from_dict({})
    return notebook


def _is_cell(cell: Any) -> bool:
    """nbformat only logs what is wrong with a cell; what follows relies on this much."""
    return (
        isinstance(cell, NotebookNode)
        and isinstance(cell.get("cell_type"), str)
        and isinstance(cell.get("metadata"), NotebookNode)
    )


class SubmissionReader(NotebookExporter):
    """nbgrader's way in. A file that cannot be read becomes an empty notebook and a reason."""

    def from_filename(
        self, filename: str, resources: dict[str, Any] | None = None, **kw: Any
    ) -> tuple[Any, dict[str, Any]]:
        resources = ResourcesDict() if resources is None else resources
        resources["metadata"] = {"path": os.path.dirname(filename)}
        try:
            notebook = read_submission(filename)
        except Unreadable as error:
            self.log.warning("%s: %s", filename, error)
            resources[UNREADABLE] = str(error)
            notebook = nbformat.v4.new_notebook()
        return self.from_notebook_node(notebook, resources, **kw)
