"""The arguments of `python -m autograder grade`."""

from __future__ import annotations

import argparse
import os


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `python -m autograder`."""
    parser = commands.add_parser("grade", help="grade the submissions for labs, in parallel")
    parser.add_argument("labs", metavar="LAB", nargs="+", help="for example 03_ring_all_reduce")
    parser.add_argument(
        "--student", action="append", metavar="ID", help="only this student; repeatable"
    )
    parser.add_argument(
        "--regrade", action="store_true",
        help="also regrade what an older version of the course graded; shows changes, then asks",
    )  # fmt: skip
    parser.add_argument(
        "--yes", action="store_true", help="write the changes of --regrade without asking"
    )
    add_worker_arguments(parser)
    parser.set_defaults(run=_grade)


def add_worker_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--jobs", type=int, default=(os.cpu_count() or 1) + 1, metavar="N",
        help="submissions to grade at a time on this machine; default: one per core, plus one, "
        "because some only wait",
    )  # fmt: skip
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="grade on the Dask cluster at tcp://host:8786"
    )
    parser.add_argument(
        "--unsandboxed", action="store_true",
        help="run students' code with your own permissions, on a machine without a sandbox",
    )  # fmt: skip


def _grade(arguments: argparse.Namespace) -> int:
    from autograder.grading.command.grade_class import grade  # nbgrader takes seconds to import

    return grade(arguments)
