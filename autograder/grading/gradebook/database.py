"""The gradebook's database: is it there, has it its tables, is it the one that grades were
written into, and how it is opened."""

from __future__ import annotations

import functools
import glob
import os
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
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
from sqlalchemy import NullPool, create_engine, make_url, select, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from autograder.grading.gradebook import indexes

NAMED = 5  # students in one message
LOCK = 0x5A4D1AB  # PostgreSQL's advisory locks are known by number; ours alone in a gradebook


class GradebookError(Exception):
    """What is wrong, and what to do. The database's address is in it, its password is not."""


def share_engines() -> None:
    """From now on all `Gradebook`s of this process that have an address share SQLAlchemy's engine.

    nbgrader opens ten for one submission, and an engine of its own would compile each statement
    anew: a fifth of what it takes to write a grade.
    """
    nbgrader.api.create_engine = _engine


_engine = functools.cache(create_engine)


def prepare(db_url: str) -> None:
    """Makes nbgrader's tables and our indexes where there are none, and returns once they are.

    On PostgreSQL any number of processes may do so at once; nbgrader's own commands fail where
    two meet an empty database, so this runs before several of them do.  Raises GradebookError.
    """
    # nbgrader starts the command `alembic` for this; see nbgrader_config.py.
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    try:
        url = make_url(db_url)
    except ArgumentError as error:
        raise GradebookError(
            "the gradebook's address cannot be read: write it in SHARDLAB_DB_URL or "
            "nbgrader_config.py as postgresql+psycopg://user@host/database"
        ) from error
    try:
        engine = create_engine(url, poolclass=NullPool)
        with engine.connect() as connection:
            if url.get_backend_name() == "postgresql":
                # Held until this connection closes.
                connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": LOCK})
            Gradebook(db_url).close()
            indexes.add(connection)
    except (SQLAlchemyError, ImportError) as error:
        said = str(getattr(error, "orig", None) or error).strip().splitlines()
        raise GradebookError(
            f"no gradebook at {url.render_as_string(hide_password=True)}: "
            f"{said[0].strip() if said else type(error).__name__}. Start the database, or correct "
            "SHARDLAB_DB_URL; nothing was graded or changed."
        ) from error


def require_same_gradebook(course: CourseDirectory) -> None:
    """Marks, comments and penalties of a person are in the gradebook alone: in another one grades
    would go on without them, and nobody would notice.

    A notebook in autograded/ is the last thing written of a submission, after its rows in the
    gradebook.  So where one has no row, that was another gradebook; a run that was killed leaves
    none such.  Raises GradebookError.
    """
    written = _autograded(course)
    with Gradebook(course.db_url, course.course_id) as gradebook:
        query = select(SubmittedAssignment.student_id, Assignment.name).join(
            Assignment, Assignment.id == SubmittedAssignment.assignment_id
        )
        missing = written - {(student, lab) for student, lab in gradebook.db.execute(query)}
    if not missing:
        return
    students = sorted({student for student, _ in missing})
    others = f" and {len(students) - NAMED} others" if students[NAMED:] else ""
    raise GradebookError(
        f"the gradebook at {make_url(course.db_url).render_as_string(hide_password=True)} has no "
        f"submission of {', '.join(students[:NAMED])}{others} for "
        f"{', '.join(sorted({lab for _, lab in missing}))}, though these were graded: marks and "
        "comments that a person gave would be left behind. Nothing was graded or changed.\n"
        "If grades were written into another database, set SHARDLAB_DB_URL (or db_url in "
        "nbgrader_config.py) back to it: there is no way yet to move a gradebook.\n"
        "If that gradebook is lost, or these were removed from it on purpose, move their folders "
        f"({course.format_path(course.autograded_directory, 'STUDENT', 'LAB')}) to another place "
        "and repeat the command: automatic points are written again from the records, what a "
        "person entered is not."
    )


def by_cell(
    gradebook: Gradebook, lab: str, columns: Sequence[Any], student: str | None = None
) -> dict[str, dict[str, list[Any]]]:
    """{student: {grade id: values}} of a lab's submissions; ``columns``: of Grade or of Comment."""
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
    """(student, lab) of every notebook there."""
    step = course.autograded_directory
    pattern = re.compile(course.format_path(step, "(?P<student>.*)", "(?P<lab>.*)", escape=True))
    found = map(pattern.fullmatch, glob.glob(course.format_path(step, "*", "*")))
    written = [m for m in found if m and Path(m[0], f"{m['lab']}.ipynb").exists()]
    return {(m["student"], m["lab"]) for m in written}
