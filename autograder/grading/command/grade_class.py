"""Grade a class's submissions for some labs; an interrupted run continues where it stopped."""

from __future__ import annotations

import argparse
import difflib
import sys
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing

from nbgrader.apps import NbGrader
from nbgrader.coursedir import CourseDirectory
from sqlalchemy.exc import SAWarning

from autograder.grading.command.lab import LabGrading, UsageError, save
from autograder.grading.command.outcomes import Outcome, changes, table
from autograder.grading.command.progress import Progress
from autograder.grading.course_error import CourseError
from autograder.grading.csv_tables import BadTable
from autograder.grading.gradebook.database import GradebookError, records_not_in_gradebook
from autograder.grading.gradebook.writer import NotWritten
from autograder.grading.late.late_work import LateWork, changes_since
from autograder.grading.late.standings import Standing
from autograder.grading.pool.journal import Journal, JournalError, Locked
from autograder.grading.pool.local import LocalPool, Pool
from autograder.grading.pool.worker import CannotGrade
from autograder.grading.record.record import BrokenRecord, Record
from autograder.grading.roster.roster import read_roster, spelled_differently
from autograder.grading.submission.folders import (
    grading_folder,
    students_who_submitted,
    submission_folder,
    unusable_names,
)

ALL_GRADED, WRONG_USAGE, NOT_ALL_GRADED, INTERRUPTED = 0, 2, 3, 130


def grade(arguments: argparse.Namespace) -> int:
    """Returns the exit code: 0 all graded; 3 not all, the table says why; 2 not started."""
    return exit_code_of(_grade, arguments)


def exit_code_of(
    command: Callable[[argparse.Namespace], int], arguments: argparse.Namespace
) -> int:
    """Runs a command that grades, and prints the error that ends it."""
    # Caused by nbgrader's own queries: nothing to fix here.
    warnings.simplefilter("ignore", SAWarning)
    try:
        if arguments.jobs < 1:
            raise UsageError(f"--jobs {arguments.jobs}: at least one worker is needed")
        return command(arguments)
    except (UsageError, BadTable, CourseError, GradebookError, CannotGrade, JournalError) as error:
        print(error, file=sys.stderr)
        disk_failed = isinstance(error, JournalError) and not isinstance(error, Locked)
        return NOT_ALL_GRADED if disk_failed else WRONG_USAGE
    except KeyboardInterrupt:
        saved = "All reported grades are saved: run the same command to continue"
        print(f"\nStopped. {saved}", file=sys.stderr)
        return INTERRUPTED


def _grade(arguments: argparse.Namespace) -> int:
    runs = [_GradingRun(arguments, lab) for lab in dict.fromkeys(arguments.labs)]
    late = late_work(runs[0].app)
    if notice := records_not_in_gradebook(runs[0].course, runs[0].records):
        print(f"{notice}\n", file=sys.stderr, flush=True)
    with open_pool(arguments, runs) as pool, ExitStack() as locks:
        for run in runs:
            locks.enter_context(run.journal.locked())
        before = late.standings()
        try:
            codes = [run.grade(pool) for run in runs]
            if not any(run.outcome.declined for run in runs):
                # Free late days count over all labs: a grade in one may change penalties in others.
                late.write(late.standings())
        finally:
            _print_late_work(late, before, [run.lab for run in runs])
    return max(codes)


def late_work(app: NbGrader) -> LateWork:
    """Raises BadTable: a wrong extension stops grading before it starts."""
    late = LateWork(app)
    late.check()
    return late


def _print_late_work(late: LateWork, before: list[Standing], labs: Sequence[str]) -> None:
    """What has changed since ``before``: each record is written with its own penalty already."""
    now = late.standings()
    if due := late.due_dates([standing for standing in now if standing.lab in labs]):
        print("\n".join(["", *due]))
    if lines := changes_since(before, now):
        print("\n  ".join(["\nLate work:", *lines]))
    if not all(standing.is_stored for standing in now):
        print("\nLate work was not updated: run `python -m autograder late`")


class _GradingRun(LabGrading):
    """The grading of all submissions for one lab."""

    def __init__(self, arguments: argparse.Namespace, lab: str) -> None:
        """Raises an error if grading cannot start."""
        super().__init__(lab)
        submitted = students_who_submitted(self.course, lab)
        unusable = unusable_names(self.course, lab)
        unusable |= spelled_differently(submitted, self._known_students())
        submitted = [student for student in submitted if student not in unusable]
        self.students = _select_students(arguments.student, submitted, unusable, self.course, lab)
        self.unconfirmed = Journal(self.records, lab, unconfirmed=True)  # from a regrade
        absent = sorted(set(self.writer.students()) - set(submitted))
        self.outcome = Outcome(lab) if arguments.student else Outcome(lab, unusable, absent)
        self.regrade, self.yes = arguments.regrade, arguments.yes
        self.outcome.regrade = self.regrade

    def _known_students(self) -> set[str]:
        roster = read_roster(grading_folder(self.course))
        return {*self.writer.students(), *(roster.people if roster else ())}

    def grade(self, pool: Pool) -> int:
        start_s, outcome = time.monotonic(), self.outcome
        todo, keep = self._sort_students()
        scores = self.writer.scores()
        for record in keep:
            outcome.records[record.student] = record
            if not self.writer.is_written(record, scores):
                self._write(record, same_submission=True)
        # closing: an error here must also end the line of progress, before the error is printed.
        with closing(self._graded(pool, todo, self.journal)) as graded:
            for record, same_submission in graded:
                outcome.records[record.student] = record
                if record.is_final:
                    self._write(record, same_submission)
        regraded = self._regraded(pool) if self.regrade else []
        outcome.took_s = time.monotonic() - start_s
        if regraded:
            self._approve(regraded)
        print(f"\n{table(outcome)}")
        missing = outcome.unusable or outcome.failed or outcome.not_written
        return NOT_ALL_GRADED if missing else ALL_GRADED

    def _sort_students(self) -> tuple[list[str], list[Record]]:
        """(students to grade, records to keep, even those of an older version)."""
        todo, keep = [], []
        for student in self.students:
            record = self._final(self.journal, student)
            task = self.maker.task(student)
            if record and record.submission_hash == task.submission_hash:
                keep.append(record)
                if record.key != task.key:
                    self.outcome.older.add(student)
            else:
                todo.append(student)
        return todo, keep

    def _graded(
        self, pool: Pool, students: list[str], journal: Journal
    ) -> Generator[tuple[Record, bool], None, None]:
        """Yield each record once it is in the journal, and whether the same submission was graded
        before."""
        if not students:
            return
        with Progress(len(students)) as progress:
            for record in pool.grade_all(map(self.maker.task, students), progress.start):
                before = self._final(journal, record.student)
                same_submission = save(journal, record, before)
                progress.finish(record)
                if record.is_final:
                    self.outcome.new.add(record.student)
                yield record, same_submission

    def _final(self, journal: Journal, student: str) -> Record | None:
        try:
            record = journal.read(student)
        except BrokenRecord as error:
            self.outcome.broken[student] = str(error)
            return None
        return record if record and record.is_final else None

    def _write(self, record: Record, same_submission: bool) -> None:
        try:
            self.writer.write(record, same_submission)
            self.outcome.not_written.pop(record.student, None)
        except NotWritten as error:
            self.outcome.not_written[record.student] = str(error)

    # ---- regrade

    def _regraded(self, pool: Pool) -> list[Record]:
        """Grade again what an older version graded; changes no grade yet."""
        done, todo = [], []
        for student in sorted(self.outcome.older):
            record = self._final(self.unconfirmed, student)
            if record and record.key == self.maker.task(student).key:
                done.append(record)
            else:
                todo.append(student)
        for record, _ in self._graded(pool, todo, self.unconfirmed):
            if record.is_final:
                done.append(record)
            else:
                self.outcome.records[record.student] = record
        return done

    def _approve(self, regraded: list[Record]) -> None:
        """Show each student's change in points, and write the new grades if confirmed."""
        changed = changes(regraded, self.writer.scores())
        effect = f"points change for {len(changed)}" if changed else "no points change"
        print(f"\nRegraded {len(regraded)} with the current version: {effect}.")
        for line in changed:
            print(f"  {line}")
        if changed and not self.yes and not _confirmed():
            later = "To write these grades without grading again, add --yes to the same command."
            print(f"Nothing was changed. {later}")
            self.outcome.declined = {record.student for record in regraded}
            return
        self.outcome.regraded = {record.student for record in regraded}
        for record in regraded:
            self.unconfirmed.move_to(self.journal, record.student)
            self.outcome.records[record.student] = record
            self.outcome.older.discard(record.student)
            self._write(record, same_submission=True)


def _confirmed() -> bool:
    print("Write these grades? [y/N] ", end="", flush=True)
    try:
        return input().strip().lower() in ("y", "yes")
    except EOFError:  # not interactive
        print()
        return False


def _select_students(
    asked: list[str] | None,
    submitted: list[str],
    unusable: dict[str, str],
    course: CourseDirectory,
    lab: str,
) -> list[str]:
    if not submitted and not unusable:
        path = submission_folder(course, lab, "STUDENT") / f"{lab}.ipynb"
        how = f"run `python -m autograder collect {lab} --from DOWNLOAD`, or copy them to {path}"
        raise UsageError(f"there are no submissions for {lab}: {how}")
    for name in asked or ():
        if name in unusable:
            raise UsageError(f"the folder name {name!r} {unusable[name]}: rename the folder")
        if name not in submitted:
            near = difflib.get_close_matches(name, submitted, n=3)
            none = f"there is no {submission_folder(course, lab, name)}"
            hint = f"did you mean {' or '.join(near)}?" if near else none
            raise UsageError(f"{name} has not submitted {lab}: {hint}")
    return list(dict.fromkeys(asked)) if asked else submitted


def open_pool(
    arguments: argparse.Namespace, labs: Sequence[LabGrading]
) -> AbstractContextManager[Pool]:
    unsandboxed = arguments.unsandboxed or any(lab.unsandboxed for lab in labs)
    if arguments.scheduler:
        from autograder.grading.pool.cluster import ClusterPool

        return ClusterPool(arguments.scheduler, unsandboxed)
    return LocalPool(arguments.jobs, unsandboxed)
