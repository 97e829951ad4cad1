"""python -m autograder late: who is late, who has an extension, and what it costs."""

from __future__ import annotations

import argparse
import sys

ALL_READ, WRONG_USAGE, TIMES_UNREAD = 0, 2, 3


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `python -m autograder`."""
    parser = commands.add_parser(
        "late", help="apply extensions and the late policy to what is graded; list late work"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only list what would change in the gradebook"
    )
    parser.set_defaults(run=_late)


def _late(arguments: argparse.Namespace) -> int:
    # Imported here because nbgrader takes seconds to import.
    from autograder.grading.csv_tables import BadTable
    from autograder.grading.gradebook.database import GradebookError
    from autograder.grading.late.late_work import LateWork, changes, show_time
    from autograder.grading.nbgrader_app import nbgrader_app

    work = LateWork(nbgrader_app())
    try:
        found = work.standings()
        wrong_times, newer_times = work.unread_times(found)
        warnings = [*work.unknown_students(), *wrong_times, *newer_times]
        if not arguments.dry_run:
            work.write(found)
    except BadTable as error:
        print(f"{error}\nNothing was changed.", file=sys.stderr)
        return WRONG_USAGE
    except GradebookError as error:
        print(error, file=sys.stderr)
        return WRONG_USAGE
    for warning in warnings:
        print(warning, file=sys.stderr)
    for line in work.due_dates(found):
        print(line)
    if work.policy is None:
        print(f"Penalties stay as they are: {work.why_no_policy}.")
    rows = [("student", "lab", "due", "", "submitted", "days late", "free", "penalty")]
    rows += [
        (
            s.student, s.lab, show_time(s.due_at), "extended" if s.extension else "",
            show_time(s.submitted_at), str(s.days), str(s.free_days), f"{s.penalty:g}",
        )
        for s in found
        if s.days or s.extension
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows if len(rows) > 1 else []:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)))
    if len(rows) == 1:
        print("No submission in the gradebook is late or has an extension.")
    lines = changes(found)
    verb = "would change" if arguments.dry_run else "changed"
    print("\n".join([f"\n{verb} in the gradebook:", *(lines or ["nothing"])]))
    return TIMES_UNREAD if wrong_times else ALL_READ
