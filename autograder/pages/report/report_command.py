"""python -m autograder export, report: what an instructor takes away from a graded lab."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The commands among those of `python -m autograder`."""
    export = commands.add_parser("export", help="points by exercise as CSV, a row for each student")
    export.add_argument("lab", metavar="LAB", nargs="?", help="03_ring_all_reduce; default: all")
    export.add_argument("--to", type=Path, metavar="FILE", help="default: the terminal")
    export.set_defaults(run=_export)
    report = commands.add_parser("report", help="how a class did: points, mistakes, time, states")
    report.add_argument("lab", metavar="LAB", help="03_ring_all_reduce")
    report.add_argument(
        "--to", type=Path, metavar="FILE", help="the page; default: grading/reports/LAB.html"
    )
    report.set_defaults(run=_report)


def _export(arguments: argparse.Namespace) -> int:
    from autograder.pages.report.course import NothingToReport, read_labs
    from autograder.pages.report.scores_csv import write_csv

    try:
        labs = read_labs(arguments.lab)
    except NothingToReport as error:
        print(error, file=sys.stderr)
        return 2
    for lab in labs:
        for name, why in lab.refused.items():
            print(f"{lab.name}: {name!r} is left out: its name {why}", file=sys.stderr)
    if arguments.to is None:
        write_csv(labs, sys.stdout)
        return 0
    arguments.to.parent.mkdir(parents=True, exist_ok=True)
    with arguments.to.open("w", newline="", encoding="utf-8") as file:
        write_csv(labs, file)
    print(f"wrote {arguments.to}")
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from autograder.pages.report.class_page import render
    from autograder.pages.report.course import NothingToReport, read_labs
    from autograder.pages.report.summary import as_text, summarize

    try:
        (lab,) = read_labs(arguments.lab)
    except NothingToReport as error:
        print(error, file=sys.stderr)
        return 2
    summary = summarize(lab)
    path = arguments.to or Path("grading/reports") / f"{lab.name}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(summary), encoding="utf-8")
    print(as_text(summary))
    print(f"\nwrote {path}")
    return 0
