"""The gradebook's database: opens it, creates its tables, and makes sure that it is the one that
earlier grades were written to."""

from __future__ import annotations

import functools
import glob
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbgrader.api
from nbgrader.api import (
    Assignment,
    BaseCell,
    Gradebook,
    SubmittedAssignment,
    SubmittedNotebook,
)
from nbgrader.coursedir import CourseDirectory
from sqlalchemy import URL, NullPool, create_engine, make_url, select, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from autograder.grading.csv_tables import write_atomically
from autograder.grading.gradebook import indexes
from autograder.grading.pool.journal import Journal
from autograder.grading.record.record import BrokenRecord

MAX_NAMED = 5  # students in one message
LOCK_ID = 0x5A4D1AB  # of a PostgreSQL advisory lock; nothing else uses it in a gradebook


class GradebookError(Exception):
    """What is wrong, and what to do. Shows the database's address without its password."""


def share_engines() -> None:
    """Make all `Gradebook`s of this process with the same address share one SQLAlchemy engine.

    nbgrader opens ten for one submission, and a separate engine would compile each statement
    again: a fifth of the time that writing a grade takes.
    """
    nbgrader.api.create_engine = _engine


_engine = functools.cache(create_engine)


@contextmanager
def opened(course: CourseDirectory) -> Iterator[Gradebook]:
    """Raises GradebookError if the database cannot be used, also inside the block, or was moved."""
    require_not_moved(course.db_url)
    try:
        with Gradebook(course.db_url, course.course_id) as gradebook:
            yield gradebook
    except (SQLAlchemyError, ImportError) as error:
        raise _unusable(course.db_url, error) from error


def _unusable(db_url: str, error: Exception) -> GradebookError:
    if isinstance(error, ArgumentError):
        return GradebookError(
            "the gradebook's address is invalid: in SHARDLAB_DB_URL or nbgrader_config.py, write "
            "it as postgresql+psycopg://user@host/database"
        )
    cause = str(getattr(error, "orig", None) or error).strip().splitlines()
    why = cause[0].strip() if cause else type(error).__name__
    what = "Start the database, or fix SHARDLAB_DB_URL."
    if "locked" in why:
        what = (
            "Another program is writing to it, such as formgrader or another command of this "
            "course: wait until it is done, then repeat this command."
        )
    return GradebookError(
        f"cannot use the gradebook at {make_url(db_url).render_as_string(hide_password=True)}: "
        f"{why}. {what} Nothing was graded or changed."
    )


def mark_as_moved(source: str, target: str) -> None:
    """Next to an SQLite file: commands that still use it are refused and name ``target``."""
    if path := _marker(make_url(target)):
        path.unlink(missing_ok=True)  # it is in use again
    if path := _marker(make_url(source)):
        write_atomically(path, f"{without_password(target)}\n".encode())


def require_not_moved(db_url: str) -> None:
    """Raise GradebookError if ``move-gradebook`` has moved this gradebook to another database."""
    try:
        path = _marker(make_url(db_url))
    except ArgumentError as error:
        raise _unusable(db_url, error) from error
    if path is None or not path.exists():
        return
    address = path.read_text(encoding="utf-8").strip()
    raise GradebookError(
        f"the gradebook was moved to {address}, and this command would use the old one. In this "
        f"shell, run\n\n  export SHARDLAB_DB_URL='{address}'\n\nand repeat the command. To go back "
        f"to the old gradebook, delete {path}. Nothing was graded or changed."
    )


def without_password(address: str) -> str:
    """The address for those who have the password in ~/.pgpass, where PostgreSQL looks for it."""
    url = make_url(address)
    if not url.password and "password" not in url.query:
        return address
    bare = URL.create(url.drivername, url.username, None, url.host, url.port, url.database)
    return (
        bare.update_query_dict(url.query).difference_update_query(["password"]).render_as_string()
    )


def _marker(url: URL) -> Path | None:
    is_file = url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:")
    return Path(f"{url.database}.moved") if is_file else None


def prepare(db_url: str) -> None:
    """Create nbgrader's tables and our indexes where they are missing.

    On PostgreSQL any number of processes may call this concurrently. nbgrader's own commands fail
    if two of them find an empty database, so call this before them.  Raises GradebookError.
    """
    # nbgrader starts the command `alembic` for this; see nbgrader_config.py.
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    require_not_moved(db_url)
    url = make_url(db_url)
    try:
        engine = create_engine(url, poolclass=NullPool)
        with engine.connect() as connection:
            if url.get_backend_name() == "postgresql":
                # Released when this connection closes.
                connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": LOCK_ID})
            Gradebook(db_url).close()
            indexes.add(connection)
    except (SQLAlchemyError, ImportError) as error:
        raise _unusable(db_url, error) from error


def require_same_gradebook(course: CourseDirectory) -> None:
    """Raise GradebookError if earlier grades were written to another gradebook.

    Manual marks, comments and penalties are only in the gradebook: in another one they would
    silently be missing.

    The notebook in autograded/ is written last, after a submission's rows in the gradebook.  A
    notebook without a row therefore means another gradebook; a killed run does not leave one.
    """
    missing = _autograded(course) - _submissions(course)
    if not missing:
        return
    raise GradebookError(
        f"the gradebook at {make_url(course.db_url).render_as_string(hide_password=True)} has no "
        f"submission of {_named(missing)}, but they were already graded: manual "
        "marks and comments would be lost. Nothing was graded or changed.\n"
        "If the grades are in another database, set SHARDLAB_DB_URL (or db_url in "
        "nbgrader_config.py) back to it; `python -m autograder move-gradebook` moves a gradebook.\n"
        "If that gradebook is lost, or these were removed from it on purpose, move their folders "
        f"({course.format_path(course.autograded_directory, 'STUDENT', 'LAB')}) to another place "
        "and repeat the command: it restores automatic points from the records, but nothing that "
        "a person entered."
    )


def records_not_in_gradebook(course: CourseDirectory, records: Path) -> str:
    """A notice for people: which records in ``records`` have no submission in the gradebook.

    "" if there are none. Unlike a notebook in autograded/, a record may belong to a grade that
    never reached a gradebook, so this is no reason to refuse.
    """
    found = {(path.stem, path.parent.name) for path in records.glob("*/[!.]*.json")}
    unknown = found - _submissions(course)
    missing = {each for each in unknown if _has_grade(Journal(records, each[1]), each[0])}
    if not missing:
        return ""
    return (
        f"The gradebook at {make_url(course.db_url).render_as_string(hide_password=True)} has no "
        f"submission of {_named(missing)}, but {records} has their records. `grade` writes their "
        "automatic points to it; what a person entered in another gradebook (marks, comments) is "
        "not there. If the grades are in another database, press Ctrl-C now and set "
        "SHARDLAB_DB_URL. If these students left, move their records to another place."
    )


def _has_grade(journal: Journal, student: str) -> bool:
    try:
        record = journal.read(student)
    except BrokenRecord:
        return False  # graded again and reported
    return record is not None and record.is_final


def _submissions(course: CourseDirectory) -> set[tuple[str, str]]:
    """(student, lab) of every submission in the gradebook."""
    with Gradebook(course.db_url, course.course_id) as gradebook:
        query = select(SubmittedAssignment.student_id, Assignment.name).join(
            Assignment, Assignment.id == SubmittedAssignment.assignment_id
        )
        return {(student, lab) for student, lab in gradebook.db.execute(query)}


def _named(missing: set[tuple[str, str]]) -> str:
    """ "ann, bob and 3 others for 03_ring_all_reduce" """
    students = sorted({student for student, _ in missing})
    others = f" and {len(students) - MAX_NAMED} others" if students[MAX_NAMED:] else ""
    labs = ", ".join(sorted({lab for _, lab in missing}))
    return f"{', '.join(students[:MAX_NAMED])}{others} for {labs}"


def by_cell(
    gradebook: Gradebook, lab: str, columns: Sequence[Any], student: str | None = None
) -> dict[str, dict[str, list[Any]]]:
    """{student: {grade id: values}} of a lab's submissions; ``columns``: of Grade or Comment."""
    table = columns[0].class_
    query = (
        select(SubmittedAssignment.student_id, BaseCell.name, *columns)
        .select_from(table)
        .join(BaseCell, BaseCell.id == table.cell_id)
        .join(SubmittedNotebook, SubmittedNotebook.id == table.notebook_id)
        .join(SubmittedAssignment, SubmittedAssignment.id == SubmittedNotebook.assignment_id)
        .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
        .where(Assignment.name == lab)
    )
    if student is not None:
        query = query.where(SubmittedAssignment.student_id == student)
    found: dict[str, dict[str, list[Any]]] = defaultdict(dict)
    for who, cell, *values in gradebook.db.execute(query):
        found[who][cell] = values
    return found


def _autograded(course: CourseDirectory) -> set[tuple[str, str]]:
    """(student, lab) of every notebook in autograded/."""
    step = course.autograded_directory
    pattern = re.compile(course.format_path(step, "(?P<student>.*)", "(?P<lab>.*)", escape=True))
    found = map(pattern.fullmatch, glob.glob(course.format_path(step, "*", "*")))
    written = [m for m in found if m and Path(m[0], f"{m['lab']}.ipynb").exists()]
    return {(m["student"], m["lab"]) for m in written}
