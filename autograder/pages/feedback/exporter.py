"""nbgrader's way in: an autograded notebook becomes one page that stands alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from nbconvert.exporters import Exporter
from nbformat import NotebookNode
from nbgrader.api import Gradebook
from traitlets import default

from autograder.pages.feedback.student_page import Page, make_page
from autograder.pages.record_of import record_of
from autograder.pages.scores import read_scores

HERE = Path(__file__).parent
HTML = HERE.parent / "html"


class NotInGradebook(Exception):
    """There is nothing to report yet; says what to do."""


class FeedbackExporter(Exporter):
    """``c.GenerateFeedback.exporter_class``. The page fetches nothing and runs nothing."""

    output_mimetype = "text/html"

    @default("file_extension")
    def _file_extension_default(self) -> str:
        return ".html"

    def from_notebook_node(  # type: ignore[override]
        self, nb: NotebookNode, resources: Any = None, **kw: Any
    ) -> tuple[str, dict[str, Any]]:
        notebook, resources = super().from_notebook_node(nb, resources, **kw)
        of = resources["nbgrader"]
        lab, student = of["assignment"], of["student"]
        with Gradebook(of["db_url"]) as gradebook:
            try:
                (scores,) = read_scores(gradebook, lab, student)
            except KeyError as error:
                raise NotInGradebook(
                    f"the gradebook has no grades of {student} for {lab}: "
                    f"run `nbgrader autograde {lab} --student {student}` first"
                ) from error
        record = record_of(self, notebook, lab, student)
        return render(make_page(notebook, lab, scores, record)), resources


def render(page: Page) -> str:
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["points"] = points
    style = "".join((HTML / name).read_text() for name in ("page.css", "output.css"))
    return environment.get_template("page.html").render(page=page, style=Markup(style))


def points(value: float) -> str:
    """Two decimals at most: "3", "2.5", "1.67"."""
    return f"{round(value, 2):g}"
