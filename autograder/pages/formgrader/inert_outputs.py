"""Makes submissions inert in formgrader too, whose pages are nbgrader's own.

formgrader shows an autograded notebook with nbconvert's HTMLExporter. nbgrader_config.py configures
it with this preprocessor, a Markdown filter (``markdown``) and ``formgrader.html``.
"""

from __future__ import annotations

from typing import Any

from jinja2 import pass_context
from jinja2.runtime import Context
from nbconvert.preprocessors import Preprocessor
from nbformat import NotebookNode
from nbformat.v4 import new_output

from autograder.build.cells import grade_id
from autograder.grading.record.record import Record
from autograder.pages.html import inert
from autograder.pages.record_of import check_output, record_of


class InertOutputs(Preprocessor):
    """Outputs as inert HTML; a check's table comes from the grader's record."""

    def preprocess(
        self, nb: NotebookNode, resources: dict[str, Any]
    ) -> tuple[NotebookNode, dict[str, Any]]:
        record = record_of(self, nb, resources["assignment_id"], resources["student"])
        for cell in nb.cells:
            if cell.cell_type != "code":
                continue
            if not isinstance(cell.get("execution_count"), int):
                cell.execution_count = None
            cell.outputs = [
                new_output("display_data", data={"text/html": html})
                for html in _outputs(cell, record)
            ]
        return nb, resources


@pass_context
def markdown(context: Context, source: str) -> str:
    """Replaces nbconvert's filter ``markdown2html``; ``context`` has the cell."""
    cell = context.get("cell") or {}
    return inert.markdown(source, cell.get("attachments"))


def _outputs(cell: NotebookNode, record: Record | None) -> list[str]:
    table, _ = check_output(record, grade_id(cell))
    if not table:
        return [inert.output(out) for out in cell.outputs]
    # Besides its table, the cell has its points, or the error that explains why there are none.
    others = [out for out in cell.outputs if "text/html" not in out.get("data", {})]
    return [table, *map(inert.output, others)]
