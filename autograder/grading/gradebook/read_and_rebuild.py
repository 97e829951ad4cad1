"""Replaces nbgrader's first steps with a submission: reads the file and rebuilds the notebook."""

from __future__ import annotations

import os
from typing import Any

import nbformat
from nbconvert.exporters import NotebookExporter
from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor

from autograder.grading.gradebook.database import require_not_moved
from autograder.grading.gradebook.graded_answers import graded_answers
from autograder.grading.submission.files import Unreadable
from autograder.grading.submission.lab_cells import cells_of_lab
from autograder.grading.submission.reader import read_content, read_notebook
from autograder.grading.submission.rebuild import insert_notes, rebuild
from autograder.grading.submission.released import load_template

UNREADABLE = "shardlab_unreadable"  # key of ``resources``: why, for the student
NOTES = "shardlab_notes"  # key of ``resources``: repairs needed to read it, for the student


class SubmissionReader(NotebookExporter):
    """Turns an unreadable file into an empty notebook and a reason."""

    def __init__(self, **kw: Any) -> None:
        """``parent``: the converter that grades, which has removed nothing yet."""
        super().__init__(**kw)
        self.graded = graded_answers(self.parent)

    def from_filename(
        self, filename: str, resources: dict[str, Any] | None = None, **kw: Any
    ) -> tuple[Any, dict[str, Any]]:
        resources = ResourcesDict() if resources is None else resources
        resources["metadata"] = {"path": os.path.dirname(filename)}
        try:
            course = CourseDirectory(parent=self.parent)
            lab = cells_of_lab(course, os.path.basename(os.path.dirname(filename)))
            notebook, resources[NOTES] = read_notebook(read_content(filename), lab)
        except Unreadable as error:
            self.log.warning("%s: %s", filename, error)
            resources[UNREADABLE] = str(error)
            notebook = nbformat.v4.new_notebook()
        return self.from_notebook_node(notebook, resources, **kw)


class RebuildSubmission(NbGraderPreprocessor):
    """First in nbgrader's ``sanitize_preprocessors``; lists its repairs at the top."""

    def preprocess(
        self, nb: NotebookNode, resources: dict[str, Any]
    ) -> tuple[NotebookNode, dict[str, Any]]:
        require_not_moved(resources["nbgrader"]["db_url"])
        template = load_template(self, resources)
        if UNREADABLE in resources:
            rebuilt = template
            notes = [f"The file you submitted could not be read: {resources[UNREADABLE]}."]
        else:
            rebuilt, notes = rebuild(template, nb)
            notes = [*resources.get(NOTES, []), *notes]
        for note in notes:
            self.log.warning("%s: %s", resources["nbgrader"]["student"], note)
        insert_notes(rebuilt, notes)
        return rebuilt, resources
