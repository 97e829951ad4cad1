"""Collects a student's newest submission from the exchange, and puts a page back."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from nbgrader.api import MissingEntry
from nbgrader.exchange import ExchangeError
from nbgrader.utils import notebook_hash

from autograder.grading.collect.from_exchange import Collect
from autograder.grading.command.lab import LabGrading, UsageError
from autograder.grading.course_time import to_utc
from autograder.grading.gradebook.database import opened
from autograder.grading.submission.files import Unreadable, read_regular_file
from autograder.grading.submission.folders import SECRET, submission_folder
from autograder.grading.submission.timestamp import TIMESTAMP
from autograder.pages.feedback.release_feedback import ReleaseFeedback
from autograder.pages.html.page import write_page


@dataclass(frozen=True)
class Collected:
    """The submission that is now in grading/submitted."""

    student: str
    lab: str
    submitted_at: datetime  # UTC
    page: Path  # where `nbgrader fetch_feedback` finds the page for this submission

    @property
    def has_page(self) -> bool:
        return self.page.exists()

    def release(self, html: str) -> None:
        write_page(self.page, html)


class LabExchange:
    """The exchange of one lab."""

    def __init__(self, lab: LabGrading) -> None:
        """Raises UsageError if there is no exchange, or if it is not writable."""
        self.lab = lab
        self._collect = CollectNamed(coursedir=lab.course, parent=lab.app)
        self._collect.update = True
        self.checks_owner = self._collect.check_owner
        release = ReleaseFeedback(coursedir=lab.course, parent=lab.app)
        self.inbound = Path(release.root, lab.course.course_id, "inbound")
        if not self.inbound.is_dir():
            raise UsageError(
                f"there is no {self.inbound}: run `nbgrader release_assignment {lab.lab}`, which "
                "creates the exchange's folders, or set c.Exchange.root in nbgrader_config.py"
            )
        try:
            release.init_dest()
        except (ExchangeError, OSError) as error:
            raise UsageError(f"the exchange cannot be used: {error}") from error
        self.feedback = Path(release.dest_path)

    def collect(self, student: str, names: Collection[str]) -> Collected:
        """Collect the student's newest submission, unless it has already been collected.

        ``names``: of folders in inbound. Raises OSError and errors of nbgrader.
        """
        self._collect.student, self._collect.names = student, names
        self._collect.start()
        folder = submission_folder(self.lab.course, self.lab.lab, student)
        try:
            secret, at = (
                read_regular_file(folder / n, 1_000).decode() for n in (SECRET, TIMESTAMP)
            )
        except Unreadable as error:
            raise ExchangeError(f"{folder} did not come through the exchange") from error
        name = notebook_hash(secret=secret, notebook_id=self.lab.lab)
        submitted_at = to_utc(at)
        assert submitted_at is not None
        return Collected(student, self.lab.lab, submitted_at, self.feedback / f"{name}.html")


class CollectNamed(Collect):
    """Like nbgrader's own, but chooses only among the named folders."""

    student = ""
    names: Collection[str] = ()

    def init_src(self) -> None:
        self.inbound_path = str(Path(self.root, self.coursedir.course_id, "inbound"))
        records = self._sort_by_timestamp([self._path_to_record(name) for name in self.names])
        due_at = self._due_at() if self.before_duedate else None
        in_time = [record for record in records if due_at and record["timestamp"] <= due_at]
        self.src_records = (in_time or records)[:1]

    def _due_at(self) -> datetime | None:
        with opened(self.coursedir) as gradebook:
            try:
                due_at: datetime | None = gradebook.find_assignment(
                    self.coursedir.assignment_id
                ).duedate
            except MissingEntry:
                return None
        return due_at
