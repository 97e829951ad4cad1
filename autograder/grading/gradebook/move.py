"""Copies nbgrader's whole gradebook into another database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nbgrader.api import Base
from sqlalchemy import (
    URL,
    Connection,
    NullPool,
    Table,
    create_engine,
    delete,
    func,
    inspect,
    make_url,
    select,
    text,
    tuple_,
)
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from autograder.grading.gradebook.database import GradebookError, mark_as_moved, prepare

BATCH = 500  # rows in one statement: SQLite allows 32766 values
COURSE = "course"  # nbgrader adds a row to this table whenever it opens a gradebook
VERSION = "alembic_version"

Row = tuple[Any, ...]
OnTable = Callable[[str, int], None]


def move(source: str, target: str, on_table: OnTable = lambda table, rows: None) -> list[str]:
    """Copy every row of nbgrader's tables from ``source`` into the empty gradebook ``target``.

    Creates the tables of ``target``; then one transaction copies all rows and compares each value,
    so that after an error ``target`` has no rows. ``source`` is only read; a marker next to an
    SQLite file says where it was moved. ``on_table`` receives each table with its number of rows
    before the transaction ends.

    Returns the names of tables in ``source`` that are not nbgrader's and were not copied.  Raises
    GradebookError.
    """
    from_url, to_url = _url(source), _url(target)
    if _database(from_url) == _database(to_url):
        raise GradebookError(
            f"{_shown(to_url)} is the source as well as the target: is SHARDLAB_DB_URL set to the "
            "new gradebook already? Then name the old one with --from. Nothing was changed."
        )
    _require_source(from_url)
    with _connected(to_url, "the target") as there:
        _require_empty(there, to_url)
    prepare(target)
    with _connected(from_url, "the source") as here, _connected(to_url, "the target") as there:
        _begin_snapshot(here)
        _require_same_schema(here, there)
        _require_empty(there, to_url)
        there.execute(delete(Base.metadata.tables[COURSE]))
        tables = Base.metadata.sorted_tables  # in the order of their foreign keys
        for table in tables:
            _copy(table, here, there)
        for table in tables:
            on_table(table.name, _compare(table, here, there))
        others = set(inspect(here).get_table_names()) - {table.name for table in tables}
        there.commit()
    mark_as_moved(source, target)
    return sorted(others - {VERSION})


def _copy(table: Table, here: Connection, there: Connection) -> None:
    try:
        for rows in _batches(table, here):
            there.execute(table.insert(), [dict(zip(table.c.keys(), r, strict=True)) for r in rows])
    except SQLAlchemyError as error:
        raise GradebookError(
            f"the target cannot store a row of the table {table.name}: {_cause(error)}. Nothing "
            "was moved: correct that row in the old gradebook and repeat the command."
        ) from error


def _compare(table: Table, here: Connection, there: Connection) -> int:
    """The number of rows; raises GradebookError if one differs."""
    count = select(func.count()).select_from(table)
    rows, copied = here.scalar(count), there.scalar(count)
    differs = rows != copied
    key = tuple_(*table.primary_key.columns)
    positions = [list(table.c).index(column) for column in table.primary_key.columns]
    for batch in _batches(table, here):
        keys = [tuple(row[position] for position in positions) for row in batch]
        differs |= set(map(tuple, there.execute(select(table).where(key.in_(keys))))) != set(batch)
    if differs:
        raise GradebookError(
            f"after copying, the table {table.name} differs ({rows} rows, copied {copied}): "
            "another program may be writing to the target. Nothing was moved: repeat the command "
            "with a new, empty target."
        )
    return int(rows or 0)


def _batches(table: Table, here: Connection) -> Iterator[list[Row]]:
    for rows in here.execute(select(table)).partitions(BATCH):
        yield list(map(tuple, rows))


# ---- what must hold before


def _url(address: str) -> URL:
    try:
        return make_url(address)
    except ArgumentError as error:
        raise GradebookError(
            f"{address!r} is not the address of a database: write it as "
            "postgresql+psycopg://user@host/database or sqlite:////absolute/path/gradebook.db"
        ) from error


def _database(url: URL) -> object:
    """Equal for two addresses of the same file, whatever their options."""
    is_sqlite = url.get_backend_name() == "sqlite"
    return Path(url.database).resolve() if is_sqlite and url.database else url


def _require_source(url: URL) -> None:
    # SQLite would create the file.
    path = url.database if url.get_backend_name() == "sqlite" else None
    missing = path is not None and not Path(path).is_file()
    if not missing:
        with _connected(url, "the source") as here:
            missing = not inspect(here).has_table("submitted_assignment")
    if missing:
        raise GradebookError(
            f"there is no gradebook at {_shown(url)}: name the one to move with --from, such as "
            "sqlite:///grading/gradebook.db. Nothing was changed."
        )


def _require_empty(there: Connection, url: URL) -> None:
    known = set(inspect(there).get_table_names())
    used = [
        table.name
        for table in Base.metadata.sorted_tables
        if table.name in known - {COURSE} and there.execute(select(table).limit(1)).first()
    ]
    if used:
        raise GradebookError(
            f"the gradebook at {_shown(url)} is not empty (it has rows in {', '.join(used)}): "
            "create a new database and name it with --to. Nothing was changed."
        )


def _require_same_schema(here: Connection, there: Connection) -> None:
    versions = [
        connection.scalar(text(f"SELECT version_num FROM {VERSION}"))
        if inspect(connection).has_table(VERSION)
        else None
        for connection in (here, there)
    ]
    if versions[0] != versions[1]:
        raise GradebookError(
            "the gradebook was written by another version of nbgrader: back it up, run "
            "`nbgrader db upgrade`, and repeat the command. Nothing was moved."
        )


def _begin_snapshot(here: Connection) -> None:
    """Both passes over the source, to copy and to compare, see the same rows."""
    if here.dialect.name == "sqlite":
        here.exec_driver_sql("BEGIN")  # Python's module does not begin one to read
    else:
        here.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))


@contextmanager
def _connected(url: URL, which: str) -> Iterator[Connection]:
    """Rolls back what was not committed. Raises GradebookError."""
    try:
        with create_engine(url, poolclass=NullPool).connect() as connection:
            yield connection
    except (SQLAlchemyError, ImportError) as error:
        raise GradebookError(
            f"cannot use {which}, {_shown(url)}: {_cause(error)}. Nothing was moved."
        ) from error


def _cause(error: Exception) -> str:
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def _shown(url: URL) -> str:
    return url.render_as_string(hide_password=True)
