"""python -m autograder rename and remove: students who get another id, or leave."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add both commands to `python -m autograder`."""
    parser = commands.add_parser(
        "rename", help="give a student another id, with marks, submissions and feedback"
    )
    parser.add_argument("old", metavar="OLD", help="the id so far")
    parser.add_argument("new", metavar="NEW", help="the new id")
    parser.set_defaults(run=_rename)
    parser = commands.add_parser(
        "remove", help="move everything of a student who left to grading/removed"
    )
    parser.add_argument("student", metavar="STUDENT")
    parser.add_argument("--undo", action="store_true", help="move it back, with all marks")
    parser.set_defaults(run=_remove)


def _rename(arguments: argparse.Namespace) -> int:
    from autograder.grading.roster.rename import rename  # nbgrader takes seconds to import

    return _print(lambda: rename(arguments.old, arguments.new))


def _remove(arguments: argparse.Namespace) -> int:
    from autograder.grading.roster.remove import remove, restore

    command = restore if arguments.undo else remove
    return _print(lambda: command(arguments.student))


def _print(command: Callable[[], str]) -> int:
    from autograder.grading.csv_tables import BadTable
    from autograder.grading.gradebook.database import GradebookError
    from autograder.grading.pool.journal import JournalError
    from autograder.grading.roster.rename import CannotChange

    try:
        print(command())
    except (CannotChange, BadTable, GradebookError, JournalError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0
