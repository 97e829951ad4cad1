"""python -m autograder roster: adds students to the gradebook, with their ids on platforms."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `python -m autograder`."""
    parser = commands.add_parser(
        "roster", help="add students to the gradebook, or update them, from a table"
    )
    parser.add_argument(
        "table", type=Path, metavar="FILE",
        help="CSV with a column student (or email), and any of: first_name, last_name, name, "
        "email, canvas_id, canvas_login, moodle_name, gradescope_email",
    )  # fmt: skip
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    # Imported here because nbgrader takes seconds to import.
    from autograder.grading.csv_tables import BadTable
    from autograder.grading.gradebook.database import GradebookError
    from autograder.grading.roster.enroll import enroll

    try:
        changed, is_complete = enroll(arguments.table)
    except (BadTable, GradebookError) as error:
        print(error, file=sys.stderr)
        return 2
    print(changed)
    return 0 if is_complete else 3
