"""python -m autograder move-gradebook: to a database server, or to another file."""

from __future__ import annotations

import argparse
import sys


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `python -m autograder`."""
    parser = commands.add_parser(
        "move-gradebook", help="copy the whole gradebook to another, empty database"
    )
    parser.add_argument(
        "--to", required=True, metavar="URL", help="such as postgresql+psycopg://user@host/database"
    )
    parser.add_argument(
        "--from", dest="source", metavar="URL", help="default: the gradebook in use"
    )
    parser.set_defaults(run=_move)


def _move(arguments: argparse.Namespace) -> int:
    # Imported here because nbgrader takes seconds to import.
    from nbgrader.coursedir import CourseDirectory

    from autograder.grading.gradebook.database import GradebookError, without_password
    from autograder.grading.gradebook.move import move
    from autograder.grading.nbgrader_app import nbgrader_app

    source = arguments.source or CourseDirectory(parent=nbgrader_app()).db_url
    try:
        others = move(source, arguments.to, lambda table, n: print(f"  {n:>8}  {table}"))
    except GradebookError as error:
        print(error, file=sys.stderr)
        return 2
    for table in others:
        print(f"not copied, because it is not nbgrader's: the table {table}")
    new, old = without_password(arguments.to), without_password(source)
    print(
        f"Every row was copied and compared. To use the new gradebook, in every shell:\n\n"
        f"  export SHARDLAB_DB_URL='{new}'\n\n"
        f"The old one, {old}, is unchanged: keep it as a backup. Commands that still use it stop."
    )
    if new != arguments.to:
        print(
            "The password is left out here: put it into ~/.pgpass, as HOST:PORT:DATABASE:USER:"
            "PASSWORD in a file that only you can read (chmod 600)."
        )
    return 0
