"""Indexes that nbgrader's tables lack, for finding the rows of one submission.

Each of these columns is the second one of a unique index, which does not help a query for it alone:
without these indexes, each submission reads all grades of the class.
"""

from __future__ import annotations

import logging

from nbgrader.api import Comment, Grade, SubmittedAssignment, SubmittedNotebook
from sqlalchemy import Connection, Index
from sqlalchemy.exc import SQLAlchemyError

# This adds them to nbgrader's metadata, so that a new database gets them with its tables.
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
    """Create the missing ones in a database that has nbgrader's tables.

    If that fails (the tables belong to another user), everything still works, only slower.
    """
    try:
        for index in INDEXES:
            index.create(connection, checkfirst=True)
        connection.commit()
    except SQLAlchemyError as error:
        connection.rollback()
        logging.getLogger(__name__).warning("cannot create the gradebook's indexes: %s", error)
