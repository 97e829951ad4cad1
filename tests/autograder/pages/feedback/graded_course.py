"""A graded class, created without grading: records, gradebook and autograded/."""

from __future__ import annotations

import copy
import dataclasses
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell
from nbgrader.api import Gradebook

from autograder import exercises
from autograder.build.cells import find_check
from autograder.evaluation.verdict import CaseResult, Verdict
from autograder.grading.gradebook.database import prepare
from autograder.grading.pool.journal import Journal
from autograder.grading.record.marks import write_verdict
from autograder.grading.record.record import GRADED, Record
from shardlab.run import Call, Run, Traffic
from shardlab.widgets import timeline, traffic_map
from tests.autograder.grading.copied_course import forks

REPO = Path(__file__).parents[4]
LAB = "03_ring_all_reduce"
QUESTION = "from_8_to_64_ranks"
CHECKS = ("chunk_bounds", "reduce_scatter", "all_gather", "ring_all_reduce", "bytes_per_rank")


@dataclass
class Submission:
    """A submission and its results. ``failing``: {answer: {case: CaseResult}}."""

    failing: dict[str, dict[str, CaseResult]] = field(default_factory=dict)
    unwritten: tuple[str, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)  # {cell id: text}
    own_cells: list[NotebookNode] = field(default_factory=list)
    outputs: dict[str, list[Any]] = field(default_factory=dict)  # {cell id: outputs}
    pictures: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)
    manual_score: float | None = None  # for the question
    state: str = GRADED
    reason: str = ""
    notes: tuple[str, ...] = ()
    penalty: float = 0.0
    at: datetime = datetime(2026, 11, 12, 14, 3)
    timing: dict[str, float] = field(default_factory=lambda: {"ran_s": 4.0, "decided_s": 6.5})
    has_record: bool = True


class GradedCourse:
    """A course with one lab in a separate folder."""

    def __init__(self, root: Path, lab: str = LAB) -> None:
        self.root, self.lab = root, lab
        if not (root / "nbgrader_config.py").exists():
            shutil.copy(REPO / "nbgrader_config.py", root)
        self.released = nbformat.read(REPO / "labs" / lab / f"{lab}.ipynb", as_version=4)
        (root / "grading").mkdir(exist_ok=True)
        self.db_url = f"sqlite:///{root}/grading/gradebook.db"
        prepare(self.db_url)
        with self.gradebook as gradebook:
            gradebook.check_course("shardlab")
            gradebook.add_assignment(lab, duedate=datetime(2026, 11, 12, 12, 0))
            gradebook.add_notebook(lab, lab)
            for cell in self.released.cells:
                meta = cell.metadata.get("nbgrader", {})
                if meta.get("grade"):
                    gradebook.add_grade_cell(
                        meta.grade_id, lab, lab, max_score=meta.points, cell_type=cell.cell_type
                    )
                if meta.get("solution"):
                    gradebook.add_solution_cell(meta.grade_id, lab, lab)

    @property
    def gradebook(self) -> Gradebook:
        return Gradebook(self.db_url)

    def enroll(self, student: str, **names: str) -> None:
        with self.gradebook as gradebook:
            gradebook.add_student(student, **names)

    def grade(self, student: str, submission: Submission) -> None:
        """Writes everything that `nbgrader autograde` and manual grading write."""
        notebook, verdicts = self._decide(submission)
        key = f"key-of-{student}"
        record = Record(
            self.lab, student, key, key, submission.state, submission.reason, submission.notes,
            notebook=dict(notebook),
            points={name: verdict.points for name, verdict in verdicts.items()},
            verdicts={name: verdict.to_plain() for name, verdict in verdicts.items()},
            pictures=submission.pictures,
            timing=submission.timing,
        )  # fmt: skip
        if submission.has_record:
            Journal(self.root / "grading/records", self.lab).write(record)
            notebook.metadata["shardlab"] = {"key": key}
        folder = self.root / "grading/autograded" / student / self.lab
        folder.mkdir(parents=True)
        nbformat.write(notebook, folder / f"{self.lab}.ipynb")
        with self.gradebook as gradebook:
            gradebook.update_or_create_student(student)
            gradebook.add_submission(self.lab, student, timestamp=submission.at)
            marked = gradebook.find_submission_notebook(self.lab, self.lab, student)
            marked.late_submission_penalty = submission.penalty
            for grade in marked.grades:
                if grade.name in verdicts:
                    grade.auto_score = verdicts[grade.name].points
                    grade.needs_manual_grade = False
                else:
                    grade.manual_score = submission.manual_score
                    grade.needs_manual_grade = submission.manual_score is None
            for comment in marked.comments:
                comment.manual_comment = submission.comments.get(comment.name)
            gradebook.db.commit()

    def _decide(self, submission: Submission) -> tuple[NotebookNode, dict[str, Verdict]]:
        notebook = copy.deepcopy(self.released)
        verdicts = {}
        for cell in notebook.cells:
            cell.source = submission.sources.get(cell.id, cell.source)
            if cell.id in submission.outputs:
                cell.outputs = [nbformat.from_dict(out) for out in submission.outputs[cell.id]]
            if cell.id.startswith("check_"):
                verdict = verdict_of(find_check(cell.source).exercise, submission)
                verdicts[cell.id] = verdict
                write_verdict(cell, verdict)
        for number, cell in enumerate(submission.own_cells):
            cell.id = f"own-{number:03d}"
            notebook.cells.insert(2 + number, cell)
        return notebook, verdicts

    def nbgrader(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._python("-m", "nbgrader", *arguments)

    def autograder(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._python("-m", "autograder", *arguments)

    def _python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return forks()(["python", *arguments], self.root, os.environ)

    def feedback(self, student: str) -> str:
        path = self.root / "grading/feedback" / student / self.lab / f"{self.lab}.html"
        return path.read_text(encoding="utf-8")


def verdict_of(name: str, submission: Submission) -> Verdict:
    exercise = exercises.load(name)
    failing = submission.failing.get(exercise.answer, {})
    unwritten = exercise.answer in submission.unwritten
    cases = [
        failing.get(case.name)
        or CaseResult(
            case.name, case.hidden, case.weight, passed=not unwritten, outputs_right=not unwritten,
            was_run=not unwritten,
        )
        for case in exercise.cases
    ]  # fmt: skip
    return Verdict(name, float(exercise.points), tuple(cases), seed=7, unwritten=unwritten)


def fail(
    answer: str, mistake: str, names: Iterable[str] = (), lab: str = LAB, **facts: Any
) -> dict[str, Any]:
    """Failing results for these cases of an answer, or all: {case: CaseResult}."""
    exercise = next(found for found in exercises.of_lab(lab) if found.answer == answer)
    wanted = set(names) or {case.name for case in exercise.cases}
    return {
        case.name: dataclasses.replace(
            CaseResult(
                case.name, case.hidden, case.weight, False, mistake=mistake,
                diagnosis=f"{'a rank' if case.hidden else 'rank 2'} {mistake}",
                instructor_note=f"rank 2 {mistake} (length {case.params})",
            ),
            **facts,
        )
        for case in exercise.cases
        if case.name in wanted
    }  # fmt: skip


def ring_pictures() -> list[dict[str, str]]:
    """The traffic map and timeline of four ranks around a ring."""
    n, steps = 4, 6
    sent = np.zeros((n, n), dtype=np.int64)
    calls = []
    for rank in range(n):
        sent[rank, (rank + 1) % n] = 6 * 2**20
        for step in range(steps):
            for op, peer in (("send", (rank + 1) % n), ("recv", (rank - 1) % n)):
                start = 0.001 * step + 0.0001 * rank
                calls.append(
                    Call(
                        rank, op, 2**20, peer, tuple(range(n)), start, start + 0.0009,
                        "cell 28, line 7", step, "float32", (2**18,), 0, 2**20,
                    )
                )  # fmt: skip
    traffic = Traffic(sent, "counted by the operating system")
    run = Run(n, "cpu", "", [None] * n, [""] * n, [""] * n, traffic, calls, 0.1, 0.2)
    return [
        {"title": "Who sent how much to whom", "svg": traffic_map(run).static_svg()},
        {"title": "Calls over time", "svg": timeline(run).static_svg()},
    ]


def code_cell(source: str, *outputs: Any) -> NotebookNode:
    return new_code_cell(source, outputs=[nbformat.from_dict(out) for out in outputs])


def prose_cell(source: str) -> NotebookNode:
    return new_markdown_cell(source)


def shown(**data: str) -> dict[str, Any]:
    """A display with these formats: text_html="<b>"."""
    return {
        "output_type": "display_data",
        "metadata": {},
        "data": {name.replace("_", "/", 1): text for name, text in data.items()},
    }
