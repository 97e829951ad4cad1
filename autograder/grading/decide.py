"""In the place of nbgrader's Execute: run the student's cells, decide their answers elsewhere,
write what was decided where nbgrader looks for it."""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Dict, Integer

from autograder import exercises, grade, present
from autograder.grading.checks import Check
from autograder.grading.files import NotPlain, read_plain_file
from autograder.grading.kernel import Limits, run_student_kernel
from autograder.grading.seed import grading_seed
from autograder.grading.template import (
    CourseError,
    checks_of,
    grade_id,
    is_answer,
    load_template,
)
from autograder.verdict import Verdict

MAX_SUBJECT_BYTES = 64_000_000


class RunAndDecide(NbGraderPreprocessor):
    """First in nbgrader's ``autograde_preprocessors``."""

    limits = Dict(help="Departures from autograder.grading.kernel.Limits: {'cell_s': 120}").tag(
        config=True
    )
    seed = Integer(
        None,
        allow_none=True,
        help="Of the inputs that answers are tried on; by default drawn once for each course",
    ).tag(config=True)

    def preprocess(
        self, nb: NotebookNode, resources: dict[str, Any]
    ) -> tuple[NotebookNode, dict[str, Any]]:
        # From the source once more: the file in autograded/ says nothing about what is decided.
        checks = checks_of(load_template(self, resources))
        lab = resources["nbgrader"]["assignment"]
        seed = self.seed if self.seed is not None else grading_seed(self._grading_folder(), lab)
        started_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="shardlab-", ignore_cleanup_errors=True) as folder:
            deposits = Path(folder) / "deposits"
            deposits.mkdir()
            run_student_kernel(
                nb, private=Path(folder) / "k", deposits=deposits, limits=Limits(**self.limits)
            )
            handed_in = {
                check.exercise: read_subject(deposits / f"{check.exercise}.subject")
                for check in checks.values()
            }
        ran_s = time.monotonic()
        for position, cell in enumerate(nb.cells):
            check = checks.get(grade_id(cell) or "")
            if check is None:
                continue
            verdict = self._decide(check, handed_in[check.exercise], seed)
            why = "" if handed_in[check.exercise] else why_missing(check, nb.cells, position)
            write_verdict(cell, verdict, why)
        nb.metadata["shardlab"] = {"seed": seed}  # to repeat this grading; feedback shows it not
        self.log.info(
            "%s: ran in %.1f s, decided in %.1f s",
            resources["nbgrader"]["student"],
            ran_s - started_s,
            time.monotonic() - ran_s,
        )
        return nb, resources

    def _grading_folder(self) -> Path:
        """Where nbgrader_config.py has everything written."""
        course = CourseDirectory(parent=self)
        return Path(course.root, course.autograded_directory).parent

    def _decide(self, check: Check, subject: bytes | None, seed: int) -> Verdict:
        """Raises CourseError, or at the second failure of the machine InfrastructureError: no grade
        rather than a 0."""
        try:
            exercise = exercises.load(check.exercise)
        except KeyError as error:
            raise CourseError(f"no exercise is called {check.exercise!r}") from error
        try:
            return grade.decide(exercise, subject, seed, hidden=True)
        except grade.InfrastructureError as error:
            self.log.warning("once more: %s", error)
        return grade.decide(exercise, subject, seed, hidden=True)


def read_subject(path: Path) -> bytes | None:
    """A student's answer as it left the kernel; None where there is none, or none that counts."""
    try:
        return read_plain_file(path, MAX_SUBJECT_BYTES) or None
    except NotPlain:
        return None


def why_missing(check: Check, cells: list[NotebookNode], position: int) -> str:
    """One sentence for the student: why the answer never reached the check cell at ``position``."""
    own = _last_error(cells[position])
    above = next((cell for cell in reversed(cells[:position]) if is_answer(cell)), None)
    cause = above and _last_error(above)
    if cause:
        reason = f"the cell `{grade_id(above)}` above failed with {cause}"  # type: ignore[arg-type]
    elif own:
        reason = f"this cell failed with {own}"
    else:
        reason = f"nothing of at most {MAX_SUBJECT_BYTES // 1_000_000} MB was handed over"
    return f"`{check.subject}` never reached the check: {reason.rstrip('.')}."


def write_verdict(cell: NotebookNode, verdict: Verdict, why_nothing: str = "") -> None:
    """Replace the outputs of a check cell by what was decided.

    nbgrader takes the first error as 0 points and the first ``execute_result`` as the points; with
    neither it would give all of them, so one of the two is always written.
    """
    points = earned_points(verdict, float(cell.metadata.nbgrader.points))
    headline = why_nothing or verdict.headline
    table = {"text/html": present.as_html(verdict), "text/plain": present.as_text(verdict)}
    cell.outputs = [] if why_nothing else [new_output("display_data", data=table)]
    if points > 0:
        cell.outputs.append(new_output("execute_result", data={"text/plain": repr(points)}))
    else:
        line = f"CheckFailed: {headline}"
        cell.outputs.append(
            new_output("error", ename="CheckFailed", evalue=headline, traceback=[line])
        )


def earned_points(verdict: Verdict, max_points: float) -> float:
    """A plain float in [0, max_points]; 0 for whatever is not a number."""
    points = float(verdict.points) * max_points / verdict.max_points
    return min(max(points, 0.0), max_points) if math.isfinite(points) else 0.0


def _last_error(cell: NotebookNode) -> str:
    """ "NameError: name 'x' is not defined", shortened; empty where the cell ran through."""
    for output in reversed(cell.get("outputs", [])):
        if output.output_type == "error":
            said = f"{output.ename}: {output.evalue}" if output.evalue else str(output.ename)
            return said.splitlines()[0][:200]
    return ""
