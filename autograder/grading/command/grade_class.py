"""A whole class, graded to the end, however often that is interrupted."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from nbgrader.apps import NbGrader
from nbgrader.coursedir import CourseDirectory
from sqlalchemy.exc import SAWarning

from autograder.grading.command.outcomes import Outcome, table
from autograder.grading.command.progress import Progress
from autograder.grading.command.regrade import changes
from autograder.grading.gradebook.database import (
    AnotherGradebook,
    GradebookUnreachable,
    prepare,
    require_same_gradebook,
)
from autograder.grading.gradebook.run_and_decide import RunAndDecide
from autograder.grading.gradebook.writer import NotWritten, Writer
from autograder.grading.pool.journal import Journal, JournalError
from autograder.grading.pool.local import LocalPool, Pool
from autograder.grading.pool.tasks import (
    TaskMaker,
    grading_folder,
    refused_names,
    students_who_handed_in,
)
from autograder.grading.pool.worker import Refused
from autograder.grading.record.record import BrokenRecord, Record
from autograder.grading.submission.template import CourseError

ALL_GRADED, WRONG_USAGE, NOT_ALL_GRADED, INTERRUPTED = 0, 2, 3, 130


class WrongUsage(Exception):
    """What was asked for cannot be done: why, and what to do."""


def grade(arguments: argparse.Namespace) -> int:
    """The exit code: 0 all graded; 3 some are not, and the table says why; 2 cannot be done."""
    out = sys.stdout
    # nbgrader's own use of its database: nothing that anybody here could mend.
    warnings.simplefilter("ignore", SAWarning)
    try:
        run = _Run.prepare(arguments, out)
        with run.journal.locked():
            return run.grade()
    except (WrongUsage, CourseError, GradebookUnreachable, AnotherGradebook, Refused) as error:
        print(error, file=sys.stderr)
        return WRONG_USAGE
    except JournalError as error:
        print(error, file=sys.stderr)
        return NOT_ALL_GRADED
    except KeyboardInterrupt:
        print(
            "\nStopped. Every grade that was reported is kept: the same command goes on from there",
            file=sys.stderr,
        )
        return INTERRUPTED


@dataclass
class _Run:
    """One run of the command."""

    lab: str
    students: list[str]
    maker: TaskMaker
    journal: Journal
    waiting: Journal  # what a regrade made, until somebody agrees
    writer: Writer
    pool: AbstractContextManager[Pool]
    outcome: Outcome
    out: TextIO
    regrade: bool
    yes: bool

    @classmethod
    def prepare(cls, arguments: argparse.Namespace, out: TextIO) -> _Run:
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
        maker = decider.maker(lab)
        handed_in = students_who_handed_in(course, lab)
        records = grading_folder(course) / "records"
        writer = Writer(app, lab)
        refused = refused_names(course, lab)
        students = _chosen(arguments.student, handed_in, refused, course, lab)
        absent = sorted(set(writer.students()) - set(handed_in))
        return cls(
            lab=lab,
            students=students,
            maker=maker,
            journal=Journal(records, lab),
            waiting=Journal(records, lab, waiting=True),
            writer=writer,
            pool=_pool(arguments, decider.unsandboxed),
            outcome=Outcome(lab) if arguments.student else Outcome(lab, refused, absent),
            out=out,
            regrade=arguments.regrade,
            yes=arguments.yes,
        )

    def grade(self) -> int:
        began_s = time.monotonic()
        outcome = self.outcome
        todo, keep = self._sort()
        scores = self.writer.scores()
        for record in keep:
            outcome.records[record.student] = record
            if not self.writer.is_written(record, scores):
                self._write(record, same_submission=True)
        with self.pool as pool:
            for record, before in self._graded(pool, todo, self.journal):
                outcome.records[record.student] = record
                if record.is_final:
                    self._write(record, same_submission=before == record.submission_hash)
            regraded = self._regraded(pool) if self.regrade else []
        outcome.took_s = time.monotonic() - began_s
        if regraded:
            self._approve(regraded)
        print(f"\n{table(outcome)}", file=self.out)
        left_out = outcome.refused or outcome.failed or outcome.not_written
        return NOT_ALL_GRADED if left_out else ALL_GRADED

    def _sort(self) -> tuple[list[str], list[Record]]:
        """(students to be graded, records that stay as they are, of whatever version)."""
        todo: list[str] = []
        keep: list[Record] = []
        for student in self.students:
            try:
                record = self.journal.read(student)
            except BrokenRecord as error:
                self.outcome.broken[student] = str(error)
                record = None
            task = self.maker.task(student)
            if record and record.is_final and record.submission_hash == task.submission_hash:
                keep.append(record)
                if record.key != task.key:
                    self.outcome.older.add(student)
            else:
                todo.append(student)
        return todo, keep

    def _graded(
        self, pool: Pool, students: Iterable[str], journal: Journal
    ) -> Iterator[tuple[Record, str]]:
        """Records as they are done, in the journal already, with the hash of the submission that
        was graded before."""
        names = list(students)
        if not names:
            return
        progress = Progress(len(names), self.out)
        try:
            for record in pool.grade_all(map(self.maker.task, names), progress.start):
                before = self._before(journal, record.student)
                if record.is_final or not (before and before.is_final):
                    journal.write(record)
                progress.finish(record)
                self.outcome.new.update([record.student] if record.is_final else [])
                yield record, before.submission_hash if before and before.is_final else ""
        finally:
            progress.end()

    def _before(self, journal: Journal, student: str) -> Record | None:
        try:
            return journal.read(student)
        except BrokenRecord:
            return None

    def _write(self, record: Record, same_submission: bool) -> None:
        try:
            self.writer.write(record, same_submission)
            self.outcome.not_written.pop(record.student, None)
        except NotWritten as error:
            self.outcome.not_written[record.student] = str(error)

    # ---- regrade

    def _regraded(self, pool: Pool) -> list[Record]:
        """What the present version makes of those that an older one graded; nothing is changed."""
        done: list[Record] = []
        todo: list[str] = []
        for student in sorted(self.outcome.older):
            record = self._before(self.waiting, student)
            if record and record.is_final and record.key == self.maker.task(student).key:
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
        who = "nobody's points change" if not changed else f"{len(changed)} change"
        print(f"\nRegraded {len(regraded)} by the present version: {who}.", file=self.out)
        for change in changed:
            print(f"  {change}", file=self.out)
        if changed and not self.yes and not _agreed(self.out):
            print(
                "Nothing was changed. The same command with --yes writes these, and grades none "
                "of them again.",
                file=self.out,
            )
            return
        for record in regraded:
            self.waiting.move_to(self.journal, record.student)
            self.outcome.records[record.student] = record
            self.outcome.older.discard(record.student)
            self._write(record, same_submission=True)


def _agreed(out: TextIO) -> bool:
    print("Write these grades? [y/N] ", end="", file=out, flush=True)
    try:
        return input().strip().lower() in ("y", "yes")
    except EOFError:  # nobody there to ask
        print(file=out)
        return False


def _require_lab(course: CourseDirectory, lab: str) -> None:
    source = Path(course.format_path(course.source_directory, ".", lab))
    if not (source / f"{lab}.ipynb").exists() or os.sep in lab:
        folder = source.parent
        labs = sorted(path.parent.name for path in folder.glob("*/*.ipynb"))
        if not labs:
            raise WrongUsage(
                f"{folder} holds no labs: start this in the root of the repository, beside "
                "nbgrader_config.py"
            )
        raise WrongUsage(f"no lab is called {lab!r}: there are {', '.join(labs)}")


def _chosen(
    asked: list[str] | None,
    handed_in: list[str],
    refused: dict[str, str],
    course: CourseDirectory,
    lab: str,
) -> list[str]:
    place = course.format_path(course.submitted_directory, "STUDENT", lab)
    if not handed_in and not refused:
        raise WrongUsage(
            f"nobody has handed in {lab}: put notebooks at {place}/{lab}.ipynb, or let "
            f"`nbgrader collect {lab}` do it"
        )
    unknown = [student for student in asked or [] if student not in handed_in]
    if unknown and unknown[0] in refused:
        name = unknown[0]
        raise WrongUsage(f"the folder's name {name!r} {refused[name]}: rename the folder")
    if unknown:
        near = difflib.get_close_matches(unknown[0], handed_in, n=3)
        hint = f": did you mean {' or '.join(near)}?" if near else f": there is no {place}"
        raise WrongUsage(
            f"{unknown[0]} has not handed in {lab}{hint.replace('STUDENT', unknown[0])}"
        )
    return list(dict.fromkeys(asked)) if asked else handed_in


def _pool(arguments: argparse.Namespace, unsandboxed: bool) -> AbstractContextManager[Pool]:
    unsandboxed = unsandboxed or arguments.unsandboxed
    if arguments.scheduler:
        from autograder.grading.pool.cluster import ClusterPool

        return ClusterPool(arguments.scheduler, unsandboxed)
    return LocalPool(arguments.jobs, unsandboxed)
