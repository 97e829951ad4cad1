"""A course's late work: checked before grading, written after it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from nbgrader.api import Gradebook
from nbgrader.apps import NbGrader
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import AssignLatePenalties

from autograder.grading.course_time import to_course_time, to_utc
from autograder.grading.gradebook.database import opened
from autograder.grading.late.late_steps import LateDays
from autograder.grading.late.policy import Policy
from autograder.grading.late.standings import (
    Standing,
    extensions_file,
    extensions_of,
    save,
    standings,
)
from autograder.grading.submission.folders import students_who_submitted, submission_folder
from autograder.grading.submission.timestamp import (
    TIMESTAMP,
    BadTimestamp,
    submission_time,
    timestamp_text,
)


class LateWork:
    """The policy and the extensions of one configuration. Raises GradebookError."""

    def __init__(self, app: NbGrader) -> None:
        self._course = CourseDirectory(parent=app)
        # None: penalties stay as they are, and ``why_no_policy`` says why.
        self.policy: Policy | None = None
        self.why_no_policy = "nbgrader_config.py sets another plugin for them"
        if issubclass(AssignLatePenalties(parent=app).plugin_class, LateDays):
            self.policy = LateDays(parent=app).policy
            self.why_no_policy = "nbgrader_config.py sets no c.LateDays"

    def check(self) -> None:
        """Raise csv_tables.BadTable if a row of the extensions is wrong."""
        with self._gradebook() as gradebook:
            extensions_of(self._course, gradebook)

    def standings(self, student: str | None = None) -> list[Standing]:
        """Of all submissions, or one student's, as they should be. Raises csv_tables.BadTable."""
        with self._gradebook() as gradebook:
            extensions = extensions_of(self._course, gradebook)
            return standings(gradebook, self.policy, extensions, student)

    def write(self, found: Sequence[Standing]) -> None:
        with self._gradebook() as gradebook:
            save(gradebook, found)

    def unknown_students(self) -> list[str]:
        """A sentence for each row about a student who is not in the gradebook."""
        with self._gradebook() as gradebook:
            known = {student.id for student in gradebook.students}
            rows = (extensions_of(self._course, gradebook) or {}).values()
        path = extensions_file(self._course)
        return [
            f"{path}, line {row.line}: the gradebook has no student {row.student!r} (yet)"
            for row in rows
            if row.student not in known
        ]

    def unread_times(self, found: Sequence[Standing]) -> tuple[list[str], list[str]]:
        """A sentence for each submission time that is not a time, and for each that was written or
        changed after grading. ``found``: of all submissions."""
        wrong, newer = [], []
        graded = {(s.lab, s.student): s for s in found}
        with self._gradebook() as gradebook:
            labs = [lab.name for lab in gradebook.assignments]
        submitters = {lab: students_who_submitted(self._course, lab) for lab in labs}
        for lab, student in ((lab, each) for lab, who in submitters.items() for each in who):
            written, s = submission_folder(self._course, lab, student), graded.get((lab, student))
            try:
                time = submission_time(written)
                if s is None or time in (None, s.submitted_at):
                    continue
                if not self._is_used(s, timestamp_text(written)):
                    why = f"{written / TIMESTAMP} is not in the gradebook yet"
                    newer.append(f"{why}: run `python -m autograder grade {lab}`")
            except BadTimestamp as error:
                wrong.append(str(error))
        return wrong, newer

    def due_dates(self, found: Sequence[Standing]) -> list[str]:
        """A line for each lab of ``found`` with a due date, in words: 03.10.2026 can be in March.

        nbgrader's own commands have read such dates month first.
        """
        lines = []
        for lab in sorted({s.lab for s in found}):
            of_lab = [s for s in found if s.lab == lab]
            if due := of_lab[0].lab_due_at:
                line = f"{lab} is due on {_in_words(due)}."
                late = sum(s.days > 0 for s in of_lab)
                if (other := _month_first(due)) and 2 * late > len(of_lab):
                    typed = f"{to_course_time(other):%Y-%m-%d %H:%M:%S}"
                    command = f'nbgrader db assignment add {lab} --duedate "{typed}"'
                    line += (
                        f" {late} of {len(of_lab)} submissions are late: if you meant "
                        f"{_in_words(other)}, run `{command}`, then `python -m autograder late`."
                    )
                lines.append(line)
        return lines

    def _is_used(self, s: Standing, text: str) -> bool:
        """Whether it is the text that was graded, perhaps when the course had another zone."""
        autograded = self._course.autograded_directory
        graded = Path(self._course.format_path(autograded, s.student, s.lab))
        return timestamp_text(graded) == text

    def _gradebook(self) -> AbstractContextManager[Gradebook]:
        return opened(self._course)


def _in_words(due_at: datetime) -> str:
    return f"{to_course_time(due_at):%A, %-d %B %Y, %H:%M %Z}"


def _month_first(due_at: datetime) -> datetime | None:
    """The date with day and month exchanged, if that is another date."""
    here = to_course_time(due_at)
    if here.day > 12 or here.day == here.month:
        return None
    return to_utc(here.replace(month=here.day, day=here.month))


def changes(found: Sequence[Standing]) -> list[str]:
    """What `LateWork.write` would change, a line each."""
    lines = []
    for s in found:
        if s.due_at != s.stored_due_at:
            old, new = show_time(s.stored_due_at), show_time(s.due_at)
            lines.append(f"{s.student}, {s.lab}: due {old} -> {new}")
        if abs(s.penalty - s.stored_penalty) > 1e-9:
            lines.append(
                f"{s.student}, {s.lab}: late penalty {s.stored_penalty:g} -> {s.penalty:g}"
            )
    return lines


def changes_since(before: Sequence[Standing], now: Sequence[Standing]) -> list[str]:
    """What has changed in the gradebook from one reading of it to another, a line each."""
    old = {(s.student, s.lab): s for s in before}
    return changes(
        [
            replace(
                s,
                due_at=s.stored_due_at,
                penalty=s.stored_penalty,
                stored_extension=was.stored_extension if was else timedelta(0),
                stored_penalty=was.stored_penalty if was else 0.0,
            )
            for s in now
            for was in [old.get((s.student, s.lab))]
        ]
    )


def show_time(time: datetime | None) -> str:
    """In the course's zone; "-" for none."""
    return f"{to_course_time(time):%Y-%m-%d %H:%M %Z}" if time else "-"
