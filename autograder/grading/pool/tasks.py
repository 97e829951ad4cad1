"""A task for each submission for a lab."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nbgrader.coursedir import CourseDirectory

from autograder.build.cells import checks_of
from autograder.build.lab import require_built
from autograder.build.text import SourceError
from autograder.grading.course_error import CourseError
from autograder.grading.pool.settings import GradingSettings
from autograder.grading.record.record import Task
from autograder.grading.record.version import code_version
from autograder.grading.submission.folders import grading_folder, read_submission
from autograder.grading.submission.released import load_template
from autograder.sandbox import limits_of


class TaskMaker:
    """Makes the tasks of one lab: reads and checks once what they have in common."""

    def __init__(self, settings: GradingSettings, lab: str) -> None:
        """``settings`` carries nbgrader's configuration. Raises CourseError."""
        self.lab = lab
        self.course = CourseDirectory(parent=settings)
        nbgrader = {"assignment": lab, "notebook": lab, "db_url": self.course.db_url}
        template = load_template(settings, {"nbgrader": nbgrader})
        source = self.course.format_path(self.course.source_directory, ".", lab)
        try:
            require_built(Path(source, f"{lab}.ipynb"))
        except SourceError as error:
            raise CourseError(str(error)) from error
        checks_of(template)  # raises BadCheck
        try:
            self.limits = asdict(limits_of(lab, settings.limits))
        except ValueError as error:
            raise CourseError(f"c.RunAndDecide.limits in nbgrader_config.py: {error}") from error
        # Plain data from here on, with the same text on every machine.
        self.template: dict[str, Any] = json.loads(json.dumps(template))
        seed, folder = settings.seed, grading_folder(self.course)
        self.seed = grading_seed(folder, lab) if seed is None else seed

    def task(self, student: str) -> Task:
        content, unreadable, notes = read_submission(self.course, self.lab, student)
        return Task(
            lab=self.lab,
            student=student,
            submitted=content,
            unreadable=unreadable,
            template=self.template,
            seed=self.seed,
            limits=self.limits,
            code=code_version(),
            notes=notes,
        )


def grading_seed(folder: Path, lab: str) -> int:
    """Derived from a secret in ``folder``, created on first use: keep it to repeat the same grades.

    It has 62 bits: visible cases show students some of the values drawn from it, and a brute-force
    search must not find it.
    """
    digest = hashlib.sha256(f"{_secret(folder)}/{lab}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


def _secret(folder: Path) -> str:
    path = folder / "seed"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".seed.{os.getpid()}"
        partial.write_text(secrets.token_hex(16) + "\n")
        partial.chmod(0o600)
        try:
            os.link(partial, path)  # fails if another grader was first; then its secret is used
        except FileExistsError:
            pass
        finally:
            partial.unlink()
    return path.read_text().strip()
