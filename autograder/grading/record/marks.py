"""Writes a verdict into its check cell: a table for the student, the points for nbgrader."""

from __future__ import annotations

import math

from nbformat import NotebookNode
from nbformat.v4 import new_output

from autograder.build.cells import Check, grade_id, is_answer
from autograder.evaluation import present
from autograder.evaluation.verdict import Verdict


def write_verdict(cell: NotebookNode, verdict: Verdict, why_nothing: str = "") -> None:
    """Replace the outputs of a check cell by its verdict.

    nbgrader reads the first error as 0 points and the first ``execute_result`` as the points; with
    neither it would give full marks, so one of the two is always written.
    """
    points = earned_points(verdict, float(cell.metadata.nbgrader.points))
    table = {"text/html": present.as_html(verdict), "text/plain": present.as_text(verdict)}
    cell.outputs = [] if why_nothing else [new_output("display_data", data=table)]
    if points > 0:
        cell.outputs.append(new_output("execute_result", data={"text/plain": repr(points)}))
    else:
        facts = {"ename": "CheckFailed", "evalue": why_nothing or verdict.headline}
        shown = why_nothing or verdict.below_table
        cell.outputs.append(new_output("error", **facts, traceback=[f"CheckFailed: {shown}"]))


def earned_points(verdict: Verdict, max_points: float) -> float:
    """A plain float in [0, max_points]; 0 for nan and infinity."""
    if not verdict.max_points:  # the question was dropped
        return 0.0
    points = float(verdict.points) * max_points / verdict.max_points
    return min(max(points, 0.0), max_points) if math.isfinite(points) else 0.0


def why_missing(check: Check, cells: list[NotebookNode], position: int) -> str:
    """One sentence for the student: why the answer never reached the check cell at ``position``."""
    above = next((cell for cell in reversed(cells[:position]) if is_answer(cell)), None)
    if above is not None and (cause := _last_error(above)):
        reason = f"the cell `{grade_id(above)}` above failed with {cause}"
    elif own := _last_error(cells[position]):
        reason = f"this cell failed with {own}"
    else:
        reason = "nothing that can be graded was passed to it"
    return f"`{check.subject}` never reached the check: {reason.rstrip('.')}."


def _last_error(cell: NotebookNode) -> str:
    """ "NameError: name 'x' is not defined", shortened; empty if the cell ran without error."""
    for output in reversed(cell.get("outputs", [])):
        if output.output_type == "error":
            error = f"{output.ename}: {output.evalue}" if output.evalue else str(output.ename)
            return error.splitlines()[0][:200]
    return ""
