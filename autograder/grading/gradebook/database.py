"""The gradebook's database: is it there, has it its tables, and how it is opened."""

from __future__ import annotations

import functools
import os
import sys

import nbgrader.api
from nbgrader.api import Gradebook
from sqlalchemy import Engine, NullPool, create_engine, make_url, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from autograder.grading.gradebook import indexes

LOCK = 0x5A4D1AB  # PostgreSQL's advisory locks are known by number; ours alone in a gradebook


class GradebookUnreachable(Exception):
    """What the database said, and what to do. The address is in it, its password is not."""


def share_engines() -> None:
    """From now on all `Gradebook`s of this process that have an address share SQLAlchemy's engine.

    nbgrader opens ten for one submission, and an engine of its own would compile each statement
    anew: a fifth of what it takes to write a grade.
    """
    nbgrader.api.create_engine = _engine


@functools.cache
def _engine(db_url: str, **options: bool) -> Engine:
    return create_engine(db_url, **options)


def prepare(db_url: str) -> None:
    """Makes nbgrader's tables and our indexes where there are none, and returns once they are.

    On PostgreSQL any number of processes may do so at once; nbgrader's own commands fail where
    two meet an empty database, so this runs before several of them do.  Raises
    GradebookUnreachable.
    """
    # nbgrader starts the command `alembic` for this; see nbgrader_config.py.
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    try:
        url = make_url(db_url)
    except ArgumentError as error:
        raise GradebookUnreachable(
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
        raise GradebookUnreachable(
            f"no gradebook at {url.render_as_string(hide_password=True)}: "
            f"{said[0].strip() if said else type(error).__name__}. Start the database, or correct "
            "SHARDLAB_DB_URL; nothing was graded or changed."
        ) from error
