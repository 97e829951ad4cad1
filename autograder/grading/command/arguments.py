"""python -m autograder grade: what it can be told."""

from __future__ import annotations

import argparse
import os


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command among those of `python -m autograder`."""
    parser = commands.add_parser("grade", help="grade what students handed in, in parallel")
    parser.add_argument("lab", metavar="LAB", help="03_ring_all_reduce")
    parser.add_argument(
        "--student", action="append", metavar="ID", help="only this one; may be given repeatedly"
    )
    parser.add_argument(
        "--jobs", type=int, default=(os.cpu_count() or 1) + 1, metavar="N",
        help="submissions at a time on this machine; default: one for each processor, and one more "
        "because some only wait",
    )  # fmt: skip
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="of a Dask cluster that grades: tcp://host:8786"
    )
    parser.add_argument(
        "--regrade", action="store_true",
        help="also what an older version of the course has graded; shows who changes, then asks",
    )  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="write what --regrade shows, unasked")
    parser.add_argument(
        "--unsandboxed", action="store_true",
        help="run students' code with your own rights, where the machine has no sandbox",
    )  # fmt: skip
    parser.set_defaults(run=_grade)


def _grade(arguments: argparse.Namespace) -> int:
    from autograder.grading.command.grade_class import grade  # nbgrader takes seconds to import

    return grade(arguments)
