"""A course in a separate folder, graded by nbgrader's commands into a separate gradebook."""

from __future__ import annotations

import ast
import atexit
import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook

from autograder.grading.gradebook import database
from tests.tools.forks import Run, forking

REPO = Path(__file__).parents[3]

Notebook = dict[str, Any]


@functools.cache
def forks() -> Run:
    """Runs the commands of all courses of this process: nbgrader takes a second to import."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(forking(REPO, os.environ))


@dataclass(frozen=True)
class Course:
    """A course with a copy of the solutions. ``db_url``: a database instead of the SQLite file."""

    root: Path
    db_url: str = ""

    @classmethod
    def create(cls, root: Path, db_url: str = "") -> Course:
        shutil.copy(REPO / "nbgrader_config.py", root)
        shutil.copytree(REPO / "solutions", root / "solutions")
        if not db_url:
            (root / "grading").mkdir()
            (root / "grading/gradebook.db").write_bytes(empty_gradebook())
        return cls(root, db_url)

    def nbgrader(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Without the venv's bin folder on the PATH, as after `make lab`."""
        return self._python("-m", "nbgrader", *arguments)

    def nbgrader_unforked(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The same in a new Python process, as from a terminal."""
        return subprocess.run(
            [sys.executable, "-m", "nbgrader", *arguments],
            cwd=self.root,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=800,
        )

    def nbgrader_in_one_process(self, *commands: str) -> subprocess.CompletedProcess[str]:
        """`nbgrader_in_one_process("autograde 04_zero", ...)`: all share one sandbox."""
        return self._python("-m", "tests.autograder.grading.run_in_one_process", *commands)

    def _python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return forks()(["python", *arguments], self.root, self._environment)

    @property
    def _environment(self) -> dict[str, str]:
        return {**self.environment, "PATH": "/usr/bin:/bin"}

    @property
    def environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if k != "SHARDLAB_DB_URL"}
        return {**inherited, "SHARDLAB_DB_URL": self.db_url} if self.db_url else inherited

    @property
    def gradebook(self) -> Gradebook:
        return Gradebook(self.db_url or f"sqlite:///{self.root}/grading/gradebook.db")

    def solution(self, lab: str) -> Notebook:
        return read(self.root / "solutions" / notebook_of(lab))

    def leave_out_demonstrations(self, lab: str) -> None:
        """Keeps only the imports, definitions and checks of the lab's own code: the class runs
        faster."""
        path = self.root / "solutions" / notebook_of(lab)
        notebook = self.solution(lab)
        notebook["cells"] = [
            cell
            for cell in notebook["cells"]
            if cell["cell_type"] == "markdown"
            or "nbgrader" in cell["metadata"]
            or "from autograder import check" in "".join(cell["source"])
            or only_defines("".join(cell["source"]))
        ]
        path.write_text(json.dumps(notebook))
        path.with_suffix(".nb.py").unlink()  # it no longer agrees with this source

    def released(self, lab: str) -> Notebook:
        return read(self.root / "labs" / notebook_of(lab))

    def autograded(self, lab: str, student: str) -> Notebook:
        return read(self.root / "grading/autograded" / student / notebook_of(lab))

    def submit(self, lab: str, student: str, content: Notebook | str) -> None:
        path = self.root / "grading/submitted" / student / notebook_of(lab)
        path.parent.mkdir(parents=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))

    def scores(self, lab: str, student: str) -> dict[str, float]:
        """{answer: points} from the gradebook."""
        with self.gradebook as gradebook:
            grades = gradebook.find_submission_notebook(lab, lab, student).grades
            return {grade.name.removeprefix("check_"): grade.auto_score for grade in grades}


def only_defines(source: str) -> bool:
    with contextlib.suppress(SyntaxError):  # a magic
        kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
        return all(isinstance(statement, kinds) for statement in ast.parse(source).body)
    return False


@functools.cache  # nbgrader takes a second to create one
def empty_gradebook() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gradebook.db"
        database.prepare(f"sqlite:///{path}")
        return path.read_bytes()


def notebook_of(lab: str) -> str:
    return f"{lab}/{lab}.ipynb"


def read(path: Path) -> Notebook:
    notebook: Notebook = json.loads(path.read_text())
    return notebook


def cell_of(notebook: Notebook, cell_id: str) -> dict[str, Any]:
    return next(cell for cell in notebook["cells"] if cell["id"] == cell_id)


def source_of(notebook: Notebook, cell_id: str) -> str:
    return "".join(cell_of(notebook, cell_id)["source"])


def with_answers(notebook: Notebook, answers: dict[str, str]) -> Notebook:
    changed: Notebook = json.loads(json.dumps(notebook))
    for grade_id, source in answers.items():
        cell_of(changed, grade_id)["source"] = source
    return changed
