"""Which students submitted, and a task for each: read once, here, and never through a link."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nbgrader.coursedir import CourseDirectory
from traitlets.config import Configurable

from autograder.build.lab import require_built
from autograder.build.text import SourceError
from autograder.grading.record.record import Task
from autograder.grading.record.version import code_version
from autograder.grading.submission.files import Unreadable
from autograder.grading.submission.names import why_unusable
from autograder.grading.submission.reader import find_notebook, read_content
from autograder.grading.submission.released import load_template
from autograder.grading.submission.template import CourseError, checks_of
from autograder.sandbox import limits_of


def grading_folder(course: CourseDirectory) -> Path:
    """The folder that nbgrader_config.py sets for all results."""
    return Path(course.root, course.autograded_directory).parent


def submission_folder(course: CourseDirectory, lab: str, student: str) -> Path:
    return Path(course.format_path(course.submitted_directory, student, lab))


def students_who_submitted(course: CourseDirectory, lab: str) -> list[str]:
    """All students whose folder has a usable name, whatever is in it."""
    return [name for name in _folders(course, lab) if not why_unusable(name)]


def unusable_names(course: CourseDirectory, lab: str) -> dict[str, str]:
    """{name of a folder that must be renamed before it can be graded: why}."""
    reasons = {name: why_unusable(name) for name in _folders(course, lab)}
    return {name: why for name, why in reasons.items() if why}


def _folders(course: CourseDirectory, lab: str) -> list[str]:
    pattern = course.format_path(course.submitted_directory, "(?P<student>.*)", lab, escape=True)
    every = course.format_path(course.submitted_directory, "*", lab)
    paths = glob.glob(every, include_hidden=True)
    found = [re.fullmatch(pattern, path, re.DOTALL) for path in paths]
    excluded = course.student_id_exclude.split(",")
    return sorted(m["student"] for m in found if m is not None and m["student"] not in excluded)


class TaskMaker:
    """Makes the tasks of one lab: reads and checks once what they have in common."""

    def __init__(
        self, owner: Configurable, lab: str, *, seed: int | None, limits: Mapping[str, Any]
    ) -> None:
        """``owner`` carries nbgrader's configuration.

        Raises template.CourseError if the course is broken.
        """
        self.lab = lab
        self.course = CourseDirectory(parent=owner)
        nbgrader = {"assignment": lab, "notebook": lab, "db_url": self.course.db_url}
        template = load_template(owner, {"nbgrader": nbgrader})
        source = self.course.format_path(self.course.source_directory, ".", lab)
        try:
            require_built(Path(source, f"{lab}.ipynb"))
        except SourceError as error:
            raise CourseError(str(error)) from error
        checks_of(template)  # raises BadCheck
        try:
            self.limits = asdict(limits_of(lab, limits))
        except ValueError as error:
            raise CourseError(f"c.RunAndDecide.limits in nbgrader_config.py: {error}") from error
        # Plain data from here on, with the same text on every machine.
        self.template: dict[str, Any] = json.loads(json.dumps(template))
        folder = grading_folder(self.course)
        self.seed = seed if seed is not None else grading_seed(folder, lab)

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


def read_submission(
    course: CourseDirectory, lab: str, student: str
) -> tuple[bytes | None, str, tuple[str, ...]]:
    """(the bytes, else a sentence why there are none, notes for the student)."""
    folder = submission_folder(course, lab, student)
    if folder.is_symlink() or folder.parent.is_symlink():
        return None, "What you submitted is a link to a folder, and links are not followed.", ()
    path, note = find_notebook(folder, lab)
    if path is None:
        return None, note, ()
    try:
        return read_content(path), "", (note,) if note else ()
    except Unreadable as error:
        return None, f"The file you submitted could not be read: {error}.", ()


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
