"""A whole class, graded to the end, however often that is interrupted."""

from __future__ import annotations

import argparse
import difflib
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from nbgrader.apps import NbGrader
from nbgrader.coursedir import CourseDirectory
from sqlalchemy.exc import SAWarning

from autograder.grading.command.outcomes import Outcome, changes, table
from autograder.grading.command.progress import Progress
from autograder.grading.gradebook.database import GradebookError, prepare, require_same_gradebook
from autograder.grading.gradebook.run_and_decide import RunAndDecide
from autograder.grading.gradebook.writer import NotWritten, Writer
from autograder.grading.pool.journal import Journal, JournalError
from autograder.grading.pool.local import LocalPool, Pool
from autograder.grading.pool.tasks import (
    grading_folder,
    refused_names,
    students_who_handed_in,
    submission_folder,
)
from autograder.grading.pool.worker import Refused
from autograder.grading.record.record import BrokenRecord, Record
from autograder.grading.submission.template import CourseError

ALL_GRADED, WRONG_USAGE, NOT_ALL_GRADED, INTERRUPTED = 0, 2, 3, 130


class WrongUsage(Exception):
    """What was asked for cannot be done: why, and what to do."""


def grade(arguments: argparse.Namespace) -> int:
    """The exit code: 0 all graded; 3 some are not, and the table says why; 2 cannot be done."""
    # From how nbgrader uses its database: there is nothing to repair here.
    warnings.simplefilter("ignore", SAWarning)
    try:
        run = _Run(arguments)
        with run.journal.locked():
            return run.grade()
    except (WrongUsage, CourseError, GradebookError, Refused, JournalError) as error:
        print(error, file=sys.stderr)
        return NOT_ALL_GRADED if isinstance(error, JournalError) else WRONG_USAGE
    except KeyboardInterrupt:
        kept = "Every grade that was reported is kept: the same command goes on from there"
        print(f"\nStopped. {kept}", file=sys.stderr)
        return INTERRUPTED


class _Run:
    def __init__(self, arguments: argparse.Namespace) -> None:
        """Raises whatever makes it pointless to begin."""
        lab = arguments.lab
        if arguments.jobs < 1:
            raise WrongUsage(f"--jobs {arguments.jobs}: one worker at least has to grade")
        app = NbGrader()
        app.initialize([])
        course = CourseDirectory(parent=app)
        _require_lab(course, lab)
        prepare(course.db_url)
        require_same_gradebook(course)
        decider = RunAndDecide(parent=app)
        self.maker = decider.maker(lab)
        handed_in = students_who_handed_in(course, lab)
        refused = refused_names(course, lab)
        self.students = _chosen(arguments.student, handed_in, refused, course, lab)
        records = grading_folder(course) / "records"
        self.journal = Journal(records, lab)
        self.waiting = Journal(records, lab, waiting=True)  # from a regrade, until somebody agrees
        self.writer = Writer(app, lab)
        absent = sorted(set(self.writer.students()) - set(handed_in))
        self.outcome = Outcome(lab) if arguments.student else Outcome(lab, refused, absent)
        self.pool = _pool(arguments, decider.unsandboxed)
        self.regrade, self.yes = arguments.regrade, arguments.yes

    def grade(self) -> int:
        began_s, outcome = time.monotonic(), self.outcome
        todo, keep = self._sort()
        scores = self.writer.scores()
        for record in keep:
            outcome.records[record.student] = record
            if not self.writer.is_written(record, scores):
                self._write(record, same_submission=True)
        with self.pool as pool:
            for record, same_submission in self._graded(pool, todo, self.journal):
                outcome.records[record.student] = record
                if record.is_final:
                    self._write(record, same_submission)
            regraded = self._regraded(pool) if self.regrade else []
        outcome.took_s = time.monotonic() - began_s
        if regraded:
            self._approve(regraded)
        print(f"\n{table(outcome)}")
        left_out = outcome.refused or outcome.failed or outcome.not_written
        return NOT_ALL_GRADED if left_out else ALL_GRADED

    def _sort(self) -> tuple[list[str], list[Record]]:
        """(students to be graded, records that stay as they are, of whatever version)."""
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
    ) -> Iterator[tuple[Record, bool]]:
        """Records as they are done, in the journal already, and whether the same submission was
        graded before."""
        if not students:
            return
        progress = Progress(len(students))
        try:
            for record in pool.grade_all(map(self.maker.task, students), progress.start):
                before = self._final(journal, record.student)
                if record.is_final or before is None:
                    journal.write(record)
                progress.finish(record)
                if record.is_final:
                    self.outcome.new.add(record.student)
                same = before is not None and before.submission_hash == record.submission_hash
                yield record, same
        finally:
            progress.end()

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
        """What the present version makes of those that an older one graded; nothing is changed."""
        done, todo = [], []
        for student in sorted(self.outcome.older):
            record = self._final(self.waiting, student)
            if record and record.key == self.maker.task(student).key:
                done.append(record)
            else:
                todo.append(student)
        for record, _ in self._graded(pool, todo, self.waiting):
            if record.is_final:
                done.append(record)
            else:
                self.outcome.records[record.student] = record
        return done

    def _approve(self, regraded: list[Record]) -> None:
        """Shows who changes by how much, and writes where that is wanted."""
        changed = changes(regraded, self.writer.scores())
        who = f"{len(changed)} change" if changed else "nobody's points change"
        print(f"\nRegraded {len(regraded)} by the present version: {who}.")
        for line in changed:
            print(f"  {line}")
        if changed and not self.yes and not _agreed():
            again = "The same command with --yes writes these, and grades none of them again."
            print(f"Nothing was changed. {again}")
            return
        for record in regraded:
            self.waiting.move_to(self.journal, record.student)
            self.outcome.records[record.student] = record
            self.outcome.older.discard(record.student)
            self._write(record, same_submission=True)


def _agreed() -> bool:
    print("Write these grades? [y/N] ", end="", flush=True)
    try:
        return input().strip().lower() in ("y", "yes")
    except EOFError:  # nobody there to ask
        print()
        return False


def _require_lab(course: CourseDirectory, lab: str) -> None:
    folder = Path(course.format_path(course.source_directory, ".", "."))
    labs = sorted(path.stem for path in folder.glob("*/*.ipynb") if path.parent.name == path.stem)
    if not labs:
        root = "the root of the repository, where nbgrader_config.py is"
        raise WrongUsage(f"{folder} holds no labs: start this in {root}")
    if lab not in labs:
        raise WrongUsage(f"no lab is called {lab!r}: there are {', '.join(labs)}")


def _chosen(
    asked: list[str] | None,
    handed_in: list[str],
    refused: dict[str, str],
    course: CourseDirectory,
    lab: str,
) -> list[str]:
    if not handed_in and not refused:
        place = submission_folder(course, lab, "STUDENT") / f"{lab}.ipynb"
        how = f"put notebooks at {place}, or let `nbgrader collect {lab}` do it"
        raise WrongUsage(f"nobody has handed in {lab}: {how}")
    for name in asked or ():
        if name in refused:
            raise WrongUsage(f"the folder's name {name!r} {refused[name]}: rename the folder")
        if name not in handed_in:
            near = difflib.get_close_matches(name, handed_in, n=3)
            none = f"there is no {submission_folder(course, lab, name)}"
            hint = f"did you mean {' or '.join(near)}?" if near else none
            raise WrongUsage(f"{name} has not handed in {lab}: {hint}")
    return list(dict.fromkeys(asked)) if asked else handed_in


def _pool(arguments: argparse.Namespace, unsandboxed: bool) -> AbstractContextManager[Pool]:
    unsandboxed = unsandboxed or arguments.unsandboxed
    if arguments.scheduler:
        from autograder.grading.pool.cluster import ClusterPool

        return ClusterPool(arguments.scheduler, unsandboxed)
    return LocalPool(arguments.jobs, unsandboxed)
