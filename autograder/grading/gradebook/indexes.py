"""Indexes that nbgrader's tables lack: those to what belongs to one submission.

Each of these columns is the second one of a unique index, of no use where only it is asked for;
without them every grade of the class is read for each submission.
"""

from __future__ import annotations

import logging

from nbgrader.api import Comment, Grade, SubmittedAssignment, SubmittedNotebook
from sqlalchemy import Connection, Index
from sqlalchemy.exc import SQLAlchemyError

# Known to nbgrader's metadata from here on: it makes them together with a new database's tables.
INDEXES = tuple(
    Index(f"ix_shardlab_{model.__tablename__}_{column}", getattr(model, column))
    for model, column in (
        (SubmittedAssignment, "student_id"),
        (SubmittedNotebook, "assignment_id"),
        (Grade, "notebook_id"),
        (Comment, "notebook_id"),
    )
)


def add(connection: Connection) -> None:
    """Makes those that are not there, in a database that has nbgrader's tables.

    Where that cannot be done (the tables are another user's) all works as before, only slower.
    """
    try:
        for index in INDEXES:
            index.create(connection, checkfirst=True)
        connection.commit()
    except SQLAlchemyError as error:
        connection.rollback()
        logging.getLogger(__name__).warning("the gradebook was given no indexes: %s", error)
