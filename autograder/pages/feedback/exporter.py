"""nbgrader's entry point: an autograded notebook becomes one self-contained page."""

from __future__ import annotations

from typing import Any

from nbconvert.exporters import Exporter
from nbformat import NotebookNode
from nbgrader.api import Gradebook, MissingEntry

from autograder.grading.gradebook.database import require_not_moved
from autograder.pages.feedback.student_page import content_of
from autograder.pages.html.page import render
from autograder.pages.record_of import record_of
from autograder.pages.scores import read_scores


class NotInGradebook(Exception):
    """There is nothing to show yet; the message says what to do."""


class FeedbackExporter(Exporter):
    """``c.GenerateFeedback.exporter_class``. The page fetches nothing and runs nothing."""

    output_mimetype = "text/html"
    file_extension = ".html"

    def from_notebook_node(  # type: ignore[override]
        self, nb: NotebookNode, resources: Any = None, **kw: Any
    ) -> tuple[str, dict[str, Any]]:
        notebook, resources = super().from_notebook_node(nb, resources, **kw)
        names = resources["nbgrader"]
        lab, student = names["assignment"], names["student"]
        require_not_moved(names["db_url"])
        with Gradebook(names["db_url"]) as gradebook:
            try:
                (scores,) = read_scores(gradebook, lab, student)
            except MissingEntry as error:
                raise NotInGradebook(
                    f"the gradebook has no grades for {student} in {lab}: "
                    f"run `nbgrader autograde {lab} --student {student}` first"
                ) from error
        record = record_of(self, notebook, lab, student)
        content = content_of(notebook, lab, scores, record)
        return render("feedback/page.html", **content), resources
