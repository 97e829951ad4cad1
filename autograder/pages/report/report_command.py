"""python -m autograder export and report: the results of a graded lab, for its instructor."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autograder.pages.report.read_labs import Lab


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to `python -m autograder`."""
    export = commands.add_parser("export", help="points by exercise as CSV, a row for each student")
    export.add_argument(
        "lab", metavar="LAB", nargs="?", help="for example 03_ring_all_reduce; default: all"
    )
    export.add_argument("--to", type=Path, metavar="FILE", help="default: standard output")
    export.add_argument(
        "--platform", choices=("canvas", "moodle"), help="in the form that this platform imports"
    )
    export.add_argument(
        "--from", dest="source", type=Path, metavar="CSV",
        help="the gradebook that the platform exported, to fill in",
    )  # fmt: skip
    export.add_argument(
        "--column", action="append", default=[], metavar="LAB=NAME",
        help="the platform's name for a lab, if it differs; repeatable",
    )  # fmt: skip
    report = commands.add_parser("report", help="how a class did: points, mistakes, time, states")
    report.add_argument("lab", metavar="LAB", help="for example 03_ring_all_reduce")
    report.add_argument("--to", type=Path, metavar="FILE", help="default: grading/reports/LAB.html")
    export.set_defaults(run=_run, is_page=False)
    report.set_defaults(run=_run, is_page=True)


def _run(arguments: argparse.Namespace) -> int:
    # Imported here because nbgrader takes seconds to import.
    from autograder.grading.csv_tables import BadTable
    from autograder.grading.gradebook.database import GradebookError
    from autograder.pages.report import scores_csv
    from autograder.pages.report.read_labs import NothingToReport, read_labs

    try:
        labs = read_labs(arguments.lab, with_tries=arguments.is_page)
        if not arguments.is_page and (arguments.platform or arguments.source or arguments.column):
            return _export_for_platform(arguments, labs)
    except (NothingToReport, BadTable, GradebookError) as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.is_page:
        from autograder.pages.report import class_page  # imports torch

        class_page.report(labs, arguments.to)
    else:
        scores_csv.export(labs, arguments.to)
    return 0


def _export_for_platform(arguments: argparse.Namespace, labs: list[Lab]) -> int:
    from autograder.grading.csv_tables import BadTable
    from autograder.pages.report import platform_csv
    from autograder.pages.report.read_labs import read_class

    if not arguments.platform:
        raise BadTable("--from and --column require --platform canvas or --platform moodle")
    pairs = [text.partition("=") for text in arguments.column]
    if any(not name for _, _, name in pairs):
        raise BadTable("write --column LAB=NAME")
    headers = {lab: name for lab, _, name in pairs}
    return platform_csv.export(
        labs, read_class(), arguments.platform, arguments.source, arguments.to, headers
    )
