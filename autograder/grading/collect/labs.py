"""Recognizes which lab a submitted file belongs to, by its grade ids: its name may be anything."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from nbgrader.coursedir import CourseDirectory

from autograder.build.cells import grade_id
from autograder.grading.submission.reader import read_notebook

Labs = Mapping[str, frozenset[str]]  # {lab: the grade ids of its cells}


def labs_of(course: CourseDirectory) -> Labs:
    folder = Path(course.format_path(course.source_directory, ".", "."))
    found = {}
    for path in sorted(folder.glob("*/*.ipynb")):
        if path.parent.name == path.stem:
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            metas = [cell["metadata"].get("nbgrader", {}) for cell in cells]
            found[path.stem] = frozenset(meta["grade_id"] for meta in metas if meta)
    return found


def lab_of(content: bytes, name: str, labs: Labs) -> str:
    """The lab with the most grade ids in common; without any, the one that the file's name
    contains; "" if there is none. Raises Unreadable."""
    notebook, _ = read_notebook(content)
    ids = {grade_id(cell) for cell in notebook.cells}
    common = {lab: len(ids & known) for lab, known in labs.items()}
    best = max(common, key=lambda lab: common[lab], default="")
    if best and common[best]:
        return best
    return next((lab for lab in labs if _letters(lab) in _letters(name)), "")


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())
