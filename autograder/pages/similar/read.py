"""Reads the code of submissions, from this and earlier terms, and the code that the course gave."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.coursedir import CourseDirectory

from autograder.build.cells import is_answer
from autograder.grading.csv_tables import BadTable
from autograder.grading.nbgrader_app import nbgrader_app
from autograder.grading.roster.groups import Groups, read_groups
from autograder.grading.roster.roster import read_roster
from autograder.grading.submission.files import Unreadable
from autograder.grading.submission.folders import (
    grading_folder,
    read_submission,
    students_who_submitted,
)
from autograder.grading.submission.lab_cells import lab_cells, labs_of
from autograder.grading.submission.reader import read_notebook
from autograder.grading.submission.rebuild import rebuild
from autograder.pages.similar.compare import Text, Work

MAX_CHARS = 200_000  # of one submission's code; a long answer has 5,000
CODE_BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)


class CannotCompare(Exception):
    """The message says why nothing can be compared, and what to do."""


@dataclass
class Submissions:
    lab: str
    works: list[Work]
    given: list[Text]
    reports: Path  # the folder for pages
    left_out: list[tuple[str, str]] = field(default_factory=list)  # student, sentence with reason


def read_all(lab: str, earlier: Sequence[Path]) -> Submissions:
    """The class's submissions and those in ``earlier``, folders like grading/submitted.

    Raises CannotCompare.
    """
    app = nbgrader_app()
    course = CourseDirectory(parent=app)
    released = _released(course, lab)
    chapter = Path(course.root, "course/chapters", f"{lab}.ipynb")
    found = Submissions(lab, [], given_code(released, chapter), grading_folder(course) / "reports")
    template = nbformat.read(released, as_version=4)
    folder = grading_folder(course)
    try:
        groups = read_groups(folder, read_roster(folder), lab, labs_of(course))
    except BadTable as error:
        raise CannotCompare(str(error)) from error
    _read_folder(found, course, template, groups)
    if not found.works:
        raise CannotCompare(
            f"there are no readable submissions for {lab} in {course.submitted_directory}: "
            "collect them first"
        )
    for folder in earlier:
        if folder.resolve() == Path(course.root, course.submitted_directory).resolve():
            raise CannotCompare(f"--with {folder} is this term's folder: name an earlier term's")
        before = len(found.works)
        earlier_course = CourseDirectory(parent=app, submitted_directory=str(folder.resolve()))
        _read_folder(found, earlier_course, template, Groups({}), folder)
        if len(found.works) == before:
            raise CannotCompare(
                f"--with {folder}: there is no readable {folder}/STUDENT/{lab}/{lab}.ipynb; "
                "name a folder like grading/submitted"
            )
    return found


def _released(course: CourseDirectory, lab: str) -> Path:
    folder = Path(course.format_path(course.release_directory, ".", "."))
    labs = sorted(path.stem for path in folder.glob("*/*.ipynb") if path.parent.name == path.stem)
    if lab not in labs:
        known = ", ".join(labs) or "none: run this in the root of the repository"
        raise CannotCompare(f"there is no released lab {lab!r} (released labs: {known})")
    return folder / lab / f"{lab}.ipynb"


def given_code(*notebooks: Path) -> list[Text]:
    """Code cells, and code blocks in text (such as hints), from those notebooks that exist."""
    found = []
    for path in notebooks:
        for cell in nbformat.read(path, as_version=4).cells if path.exists() else []:
            is_code = cell.cell_type == "code"
            found += [cell.source] if is_code else CODE_BLOCK.findall(cell.source)
    return [Text("", source) for source in found]


def _read_folder(
    found: Submissions,
    course: CourseDirectory,
    template: NotebookNode,
    groups: Groups,
    term: Path | None = None,
) -> None:
    for student in students_who_submitted(course, found.lab):
        name = f"{student} ({term})" if term else student
        content, why, _ = read_submission(course, found.lab, student)
        try:
            if content is None:
                raise Unreadable(why)
            texts = code_of(content, template)
        except Unreadable as error:
            found.left_out.append((name, f"Not compared: {error}"))
            continue
        found.works.append(Work(name, tuple(texts), term is not None, groups.group_of(student)))
        if sum(len(text.source) for text in texts) >= MAX_CHARS:
            note = f"Only the first {MAX_CHARS:,} characters of code were compared."
            found.left_out.append((name, note))


def code_of(content: bytes, template: NotebookNode) -> list[Text]:
    """The code cells of a submission that are answers or that the student added.

    Raises Unreadable.
    """
    notebook, _ = rebuild(template, read_notebook(content, lab_cells(template.cells))[0])
    of_lab = {cell.id for cell in template.cells if not is_answer(cell)}
    texts, left = [], MAX_CHARS
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.id not in of_lab and left > 0:
            name = cell.id if is_answer(cell) else "a cell that the student added"
            texts.append(Text(name, cell.source[:left]))
            left -= len(cell.source)
    return texts
