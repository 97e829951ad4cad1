"""python -m autograder export and report: the results of a graded lab for its instructor."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to `python -m autograder`."""
    export = commands.add_parser("export", help="points by exercise as CSV, a row for each student")
    export.add_argument(
        "lab", metavar="LAB", nargs="?", help="for example 03_ring_all_reduce; default: all"
    )
    export.add_argument("--to", type=Path, metavar="FILE", help="default: standard output")
    report = commands.add_parser("report", help="how a class did: points, mistakes, time, states")
    report.add_argument("lab", metavar="LAB", help="for example 03_ring_all_reduce")
    report.add_argument("--to", type=Path, metavar="FILE", help="default: grading/reports/LAB.html")
    export.set_defaults(run=_run, is_page=False)
    report.set_defaults(run=_run, is_page=True)


def _run(arguments: argparse.Namespace) -> int:
    # Imported here because nbgrader takes seconds to import.
    from autograder.pages.report import class_page, scores_csv
    from autograder.pages.report.course import NothingToReport, read_labs

    try:
        labs = read_labs(arguments.lab)
    except NothingToReport as error:
        print(error, file=sys.stderr)
        return 2
    (class_page.report if arguments.is_page else scores_csv.export)(labs, arguments.to)
    return 0
