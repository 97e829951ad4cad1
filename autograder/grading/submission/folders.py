"""The folders of a class: who submitted, and what. Each is read once, and never through a link."""

from __future__ import annotations

import glob
import re
from pathlib import Path

from nbgrader.coursedir import CourseDirectory

from autograder.grading.submission.files import Unreadable
from autograder.grading.submission.lab_cells import cells_of_lab
from autograder.grading.submission.names import why_unusable
from autograder.grading.submission.reader import find_notebook, read_content

SECRET = "submission_secret.txt"  # from `nbgrader submit`; identifies the student in the exchange


def grading_folder(course: CourseDirectory) -> Path:
    """The folder that nbgrader_config.py sets for all results."""
    return Path(course.root, course.autograded_directory).parent


def records_folder(course: CourseDirectory) -> Path:
    """Of the grader's records, which the journals of the labs share."""
    return grading_folder(course) / "records"


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


def read_submission(
    course: CourseDirectory, lab: str, student: str
) -> tuple[bytes | None, str, tuple[str, ...]]:
    """(the bytes, else a sentence why there are none, notes for the student)."""
    folder = submission_folder(course, lab, student)
    if folder.is_symlink() or folder.parent.is_symlink():
        return None, "What you submitted is a link to a folder, and links are not followed.", ()
    path, note = find_notebook(folder, lab, cells_of_lab(course, lab))
    if path is None:
        return None, note, ()
    try:
        return read_content(path), "", (note,) if note else ()
    except Unreadable as error:
        return None, f"The file you submitted could not be read: {error}.", ()
