"""Grades submissions as they arrive, and gives each student a page about theirs.

A student's newest submission counts, and one submission per student is graded at a time. The
waiting student whose last turn was longest ago is next: nobody delays others by submitting often.

It stores only what `python -m autograder grade` stores. A submission is done once its page is in
the exchange, so a service that was stopped continues where it left off.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from autograder.grading.command.lab import LabGrading, save
from autograder.grading.course_error import CourseError
from autograder.grading.course_time import to_course_time
from autograder.grading.gradebook.database import opened
from autograder.grading.late.late_work import LateWork
from autograder.grading.pool.journal import JournalError
from autograder.grading.pool.local import Pool
from autograder.grading.record.record import BrokenRecord, Record, Task
from autograder.grading.record.version import code_version
from autograder.pages.feedback.exporter import FeedbackExporter
from autograder.pages.feedback.visible_page import visible_page
from autograder.pages.on_submit.inbound import Inbound, Key
from autograder.pages.on_submit.lab_exchange import Collected, LabExchange
from autograder.pages.scores import read_scores

RETRY_S = 60.0  # after an error, such as a database that cannot be reached
FATAL = (JournalError, CourseError)  # any other error affects only one submission

Say = Callable[[str], None]


class Service:
    """``step`` does everything that can be done now; call it repeatedly."""

    def __init__(
        self,
        labs: Sequence[LabGrading],
        pool: Pool,
        *,
        shows_hidden: bool,
        every_s: float,
        say: Say = print,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``labs`` must be locked. Raises UsageError if there is no exchange."""
        self._exchanges = {lab.lab: LabExchange(lab) for lab in labs}
        first = self._exchanges[labs[0].lab]
        self.inbound = Inbound(first.inbound, [*self._exchanges], first.checks_owner, clock)
        self._late = LateWork(labs[0].app)
        self._pool, self._shows_hidden, self._every_s = pool, shows_hidden, every_s
        self._say, self._clock = say, clock
        self._waiting: dict[Key, float] = {}  # {(student, lab): not before}
        self._in_flight: dict[str, Collected] = {}  # by student
        self._turns = itertools.count(1)
        self._last_turn: dict[str, int] = {}  # {student: number}
        self._reported: dict[Key, str] = {}  # errors, each printed once
        self._polled_s = -math.inf
        self._code = code_version()

    def step(self) -> None:
        """Grade what has arrived, and what arrives in the meantime.

        Raises CourseError if the course has changed, and the errors that also stop `grade`.
        """
        with closing(self._pool.grade_all(self._tasks())) as records:
            for record in records:
                self._finish(self._in_flight.pop(record.student), record)

    def _tasks(self) -> Iterator[Task | None]:
        """Endless: yields None while nobody waits."""
        while True:
            self._poll()
            yield self._next_task()

    def _poll(self) -> None:
        if self._clock() - self._polled_s < self._every_s:
            return
        self._polled_s = self._clock()
        try:
            new, ignored = self.inbound.poll()
        except OSError as error:
            self._say_once(("", ""), f"the exchange cannot be read, trying again: {error}")
            return
        for sentence in ignored:
            self._say(sentence)
        if new and code_version_on_disk() != self._code:
            raise CourseError("the course has changed since this command started: start it again")
        for key in new:
            self._waiting[key] = -math.inf

    # ---- one submission

    def _next_task(self) -> Task | None:
        now_s = self._clock()
        ready = [
            key
            for key, from_s in self._waiting.items()
            if from_s <= now_s and key[0] not in self._in_flight
        ]
        # sorted() keeps the order of arrival among students with the same last turn.
        for key in sorted(ready, key=lambda key: self._last_turn.get(key[0], 0)):
            student, lab = key
            del self._waiting[key]
            try:
                collected = self._exchanges[lab].collect(student, self.inbound.submissions[key])
                task = None if collected.has_page else self._task(collected)
            except FATAL:
                raise
            except Exception as error:
                self._postpone(key, f"not graded: {error or type(error).__name__}")
                continue
            if task is not None:
                self._in_flight[student] = collected
                self._last_turn[student] = next(self._turns)
                return task
        return None

    def _task(self, collected: Collected) -> Task | None:
        """None if this submission was graded before."""
        task = self._grading(collected).maker.task(collected.student)
        before = self._before(collected)
        if before is None or before.submission_hash != task.submission_hash:
            return task
        self._finish(collected, before)
        return None

    def _finish(self, collected: Collected, record: Record) -> None:
        """Save and write a record, then release its page."""
        key = collected.student, collected.lab
        grading = self._grading(collected)
        same_submission = save(grading.journal, record, self._before(collected))
        if not record.is_final:
            self._postpone(key, f"{record.state} ({record.reason})")
            return
        try:
            grading.writer.write(record, same_submission)
            self._late.write(self._late.standings(record.student))
            collected.release(self._page(grading, record))
        except FATAL:
            raise
        except Exception as error:
            why = str(error) or type(error).__name__
            self._postpone(key, f"graded, but without a page yet: {why}")
            return
        self._reported.pop(key, None)
        points = f"{sum(record.points.values()):g} points"
        took_s = (datetime.now(UTC).replace(tzinfo=None) - collected.submitted_at).total_seconds()
        self._say(f"{_shown(collected)}: {record.state}, {points}, page after {took_s:.0f} s")

    def _page(self, grading: LabGrading, record: Record) -> str:
        lab, student, course = record.lab, record.student, grading.course
        if self._shows_hidden:
            folder = Path(course.format_path(course.autograded_directory, student, lab))
            names = {"assignment": lab, "student": student, "db_url": course.db_url}
            # As in `nbgrader generate_feedback`.
            app = grading.app
            exporter = FeedbackExporter(parent=app, config=app.config, default_preprocessors=[])
            page, _ = exporter.from_filename(str(folder / f"{lab}.ipynb"), {"nbgrader": names})
            return str(page)
        with opened(course) as gradebook:
            (scores,) = read_scores(gradebook, lab, student)
        return visible_page(lab, scores, record)

    def _before(self, collected: Collected) -> Record | None:
        """The final record of the student's last graded submission."""
        try:
            record = self._grading(collected).journal.read(collected.student)
        except BrokenRecord:
            return None
        return record if record and record.is_final else None

    def _grading(self, collected: Collected) -> LabGrading:
        return self._exchanges[collected.lab].lab

    def _postpone(self, key: Key, why: str) -> None:
        self._waiting.setdefault(key, self._clock() + RETRY_S)
        self._say_once(key, f"{', '.join(key)}: {why}; trying again every {RETRY_S:.0f} s")

    def _say_once(self, key: Key, sentence: str) -> None:
        if self._reported.get(key) != sentence:
            self._reported[key] = sentence
            self._say(sentence)


def code_version_on_disk() -> str:
    code_version.cache_clear()
    return code_version()


def _shown(collected: Collected) -> str:
    at = to_course_time(collected.submitted_at)
    return f"{at:%Y-%m-%d %H:%M:%S %Z}  {collected.student}, {collected.lab}"
