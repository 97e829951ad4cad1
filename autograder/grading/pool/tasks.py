"""Who handed in, and a task of each: read once, here, and never through a link."""

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

from autograder.grading.record.record import Task
from autograder.grading.record.version import code_version
from autograder.grading.submission.files import Unreadable
from autograder.grading.submission.names import why_refused
from autograder.grading.submission.reader import find_notebook, read_content
from autograder.grading.submission.released import load_template
from autograder.grading.submission.template import CourseError, checks_of
from autograder.sandbox import limits_of


def grading_folder(course: CourseDirectory) -> Path:
    """Where nbgrader_config.py has everything written."""
    return Path(course.root, course.autograded_directory).parent


def submission_folder(course: CourseDirectory, lab: str, student: str) -> Path:
    return Path(course.format_path(course.submitted_directory, student, lab))


def students_who_handed_in(course: CourseDirectory, lab: str) -> list[str]:
    """Everybody with a folder that can be graded, whatever is in it."""
    return [name for name in _folders(course, lab) if not why_refused(name)]


def refused_names(course: CourseDirectory, lab: str) -> dict[str, str]:
    """{name of a folder that somebody has to rename before it can be graded: why}."""
    reasons = {name: why_refused(name) for name in _folders(course, lab)}
    return {name: why for name, why in reasons.items() if why}


def _folders(course: CourseDirectory, lab: str) -> list[str]:
    pattern = course.format_path(course.submitted_directory, "(?P<student>.*)", lab, escape=True)
    every = course.format_path(course.submitted_directory, "*", lab)
    paths = glob.glob(every, include_hidden=True)
    found = [re.fullmatch(pattern, path, re.DOTALL) for path in paths]
    excluded = course.student_id_exclude.split(",")
    return sorted(m["student"] for m in found if m is not None and m["student"] not in excluded)


class TaskMaker:
    """Makes tasks of one lab: what they have in common is read and checked once."""

    def __init__(
        self, owner: Configurable, lab: str, *, seed: int | None, limits: Mapping[str, Any]
    ) -> None:
        """``owner`` carries nbgrader's configuration.

        Raises template.CourseError where the course is not in order.
        """
        self.lab = lab
        self.course = CourseDirectory(parent=owner)
        nbgrader = {"assignment": lab, "notebook": lab, "db_url": self.course.db_url}
        template = load_template(owner, {"nbgrader": nbgrader})
        checks_of(template)  # raises BadCheck
        try:
            self.limits = asdict(limits_of(lab, limits))
        except ValueError as error:
            raise CourseError(f"c.RunAndDecide.limits in nbgrader_config.py: {error}") from error
        # Plain from here on, and the same text on every machine.
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
    """(the bytes, why there are none as a sentence, what the student should know)."""
    folder = submission_folder(course, lab, student)
    if folder.is_symlink() or folder.parent.is_symlink():
        return None, "What you handed in is a link to a folder, and links are not followed.", ()
    path, said = find_notebook(folder, lab)
    if path is None:
        return None, said, ()
    try:
        return read_content(path), "", (said,) if said else ()
    except Unreadable as error:
        return None, f"The file you handed in could not be read: {error}.", ()


def grading_seed(folder: Path, lab: str) -> int:
    """Drawn from a secret in ``folder``, made at its first use: keep it, and grades repeat.

    Of 62 bits: visible cases show students some of what is drawn, and nobody should find the seed
    by trying them all.
    """
    digest = hashlib.sha256(f"{_secret(folder)}/{lab}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


def _secret(folder: Path) -> str:
    path = folder / "seed"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / f".seed.{os.getpid()}"
        beside.write_text(secrets.token_hex(16) + "\n")
        beside.chmod(0o600)
        try:
            os.link(beside, path)  # fails where another grader was first; then that one counts
        except FileExistsError:
            pass
        finally:
            beside.unlink()
    return path.read_text().strip()
