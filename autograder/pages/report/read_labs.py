"""Reads the course for the reports: nbgrader's configuration, labs, scores and records."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory

from autograder.course.tries import Tries
from autograder.grading.collect.store import EARLIER, Store
from autograder.grading.csv_tables import BadTable
from autograder.grading.gradebook.database import opened
from autograder.grading.late.late_work import LateWork
from autograder.grading.late.standings import Standing
from autograder.grading.nbgrader_app import nbgrader_app
from autograder.grading.pool.journal import Journal
from autograder.grading.record.record import BrokenRecord, Record, hash_of_submission
from autograder.grading.roster.roster import Person, read_roster
from autograder.grading.submission.folders import (
    grading_folder,
    read_submission,
    records_folder,
    students_who_submitted,
    unusable_names,
)
from autograder.pages.match_people import read_people
from autograder.pages.report.tries import tries_in
from autograder.pages.scores import Scores, cells_of, labs_of, read_scores

NOT_GRADED, NOT_SUBMITTED = "not graded yet", "not submitted"
RESUBMITTED = "resubmission not graded yet"  # the points are of an earlier submission


class NothingToReport(Exception):
    """There is nothing to report; the message says what to do."""


@dataclass(frozen=True)
class Lab:
    """Everything known about a class in one lab."""

    name: str
    cells: tuple[str, ...]  # grade ids, in the notebook's order
    scores: tuple[Scores, ...]  # of all students in the gradebook, sorted by id
    records: dict[str, Record]  # {student: ...} for those whom the grader has graded
    submitted: frozenset[str]  # students with a submission, graded or not
    unusable: dict[str, str]  # {folder name: why it is not graded}
    late: dict[str, Standing]  # {student: ...} for those in the gradebook with a submission
    earlier: dict[str, list[str]] = field(default_factory=dict)  # {student: times}; oldest first
    history: Path = Path()  # the folder with earlier submissions: STUDENT/LAB/TIME
    resubmitted: frozenset[str] = frozenset()  # students whose newest submission is not graded yet
    roster: frozenset[str] | None = None  # None: there is no roster, so everyone counts
    # {student: {answer: tries}} for those whose notebook contains them; empty unless requested
    tries: dict[str, dict[str, Tries]] = field(default_factory=dict)

    def state(self, scores: Scores) -> str:
        """The state of the record, or why there is none."""
        if scores.student in self.resubmitted:
            return RESUBMITTED
        if record := self.records.get(scores.student):
            return record.state
        if scores.marks:
            return "graded without a record"
        return NOT_GRADED if scores.student in self.submitted else NOT_SUBMITTED

    @property
    def absent(self) -> tuple[str, ...]:
        """Students of the course who submitted nothing, sorted by id."""
        return tuple(
            scores.student
            for scores in self.scores
            if self.state(scores) == NOT_SUBMITTED
            and (self.roster is None or scores.student in self.roster)
        )


def read_labs(wanted: str | None, *, with_tries: bool = False) -> list[Lab]:
    """Reads one lab, or all in the gradebook. Raises NothingToReport, BadTable or GradebookError.

    ``with_tries`` parses every submitted notebook.
    """
    app = nbgrader_app()
    course = CourseDirectory(parent=app)
    try:
        late = LateWork(app).standings()
    except BadTable as error:
        raise NothingToReport(str(error)) from error
    with opened(course) as gradebook:
        known = labs_of(gradebook)
        if wanted is not None and wanted not in known:
            raise NothingToReport(
                f"the gradebook contains no lab {wanted!r} (it has: {', '.join(known) or 'none'}): "
                "run this in the course's folder, after grading"
            )
        return [
            _read(course, gradebook, lab, {s.student: s for s in late if s.lab == lab}, with_tries)
            for lab in ([wanted] if wanted else known)
        ]


def read_class() -> list[Person]:
    """Everyone in the gradebook. Raises BadTable or GradebookError."""
    course = CourseDirectory(parent=nbgrader_app())
    with opened(course) as gradebook:
        return read_people(gradebook, grading_folder(course))


def _read(
    course: CourseDirectory,
    gradebook: Gradebook,
    lab: str,
    late: dict[str, Standing],
    with_tries: bool,
) -> Lab:
    journal = Journal(records_folder(course), lab)
    records = {}
    for student in journal.students():
        with suppress(BrokenRecord):  # the next grading replaces and reports it
            if record := journal.read(student):
                records[student] = record
    scores = read_scores(gradebook, lab)
    submitted = frozenset(students_who_submitted(course, lab))
    max_points = max((found.max_points for found in scores), default=0.0)
    roster = read_roster(grading_folder(course))
    people = roster.people if roster else {}
    unknown = (submitted | records.keys() | people.keys()) - {found.student for found in scores}
    scores += [Scores(student, max_points=max_points) for student in unknown]
    scores.sort(key=lambda found: found.student)
    cells = _in_order(course, lab, cells_of(gradebook, lab))
    unusable = unusable_names(course, lab)
    enrolled = frozenset(people) if roster else None
    store = Store(course, lab)
    earlier = {s: times for s in sorted(submitted) if (times := store.earlier(s))}
    resubmitted, tries = set(), {}
    for student in submitted:
        content, unreadable, notes = read_submission(course, lab, student)
        newest = hash_of_submission(content, unreadable, notes)
        if student in records and records[student].submission_hash != newest:
            resubmitted.add(student)
        if with_tries:
            tries[student] = tries_in(content, lab)
    history = grading_folder(course) / EARLIER
    return Lab(
        lab, cells, tuple(scores), records, submitted, unusable, late, earlier, history,
        frozenset(resubmitted), enrolled, tries,
    )  # fmt: skip


def _in_order(course: CourseDirectory, lab: str, cells: list[str]) -> tuple[str, ...]:
    """The cells in the order of the lab's source, if that can be read."""
    path = Path(course.format_path(course.source_directory, ".", lab)) / f"{lab}.ipynb"
    try:
        found: list[Any] = json.loads(path.read_text(encoding="utf-8"))["cells"]
        order = [str(cell["metadata"].get("nbgrader", {}).get("grade_id")) for cell in found]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        order = []
    return tuple(sorted(cells, key=lambda cell: order.index(cell) if cell in order else len(order)))


def exercise_of(cell: str) -> str:
    """A check is named after its answer: check_reduce_scatter."""
    return cell.removeprefix("check_")
