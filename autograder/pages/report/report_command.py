"""python -m autograder export, report: what an instructor takes away from a graded lab."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autograder.pages.report.course import Lab


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The commands among those of `python -m autograder`."""
    export = commands.add_parser("export", help="points by exercise as CSV, a row for each student")
    export.add_argument("lab", metavar="LAB", nargs="?", help="03_ring_all_reduce; default: all")
    export.add_argument("--to", type=Path, metavar="FILE", help="default: the terminal")
    report = commands.add_parser("report", help="how a class did: points, mistakes, time, states")
    report.add_argument("lab", metavar="LAB", help="03_ring_all_reduce")
    report.add_argument(
        "--to", type=Path, metavar="FILE", help="the page; default: grading/reports/LAB.html"
    )
    export.set_defaults(run=_run, write=_export)
    report.set_defaults(run=_run, write=_report)


def _run(arguments: argparse.Namespace) -> int:
    # Only here and below: it imports nbgrader, which takes seconds.
    from autograder.pages.report.course import NothingToReport, read_labs

    try:
        labs = read_labs(arguments.lab)
    except NothingToReport as error:
        print(error, file=sys.stderr)
        return 2
    arguments.write(labs, arguments.to)
    return 0


def _export(labs: list[Lab], to: Path | None) -> None:
    from autograder.pages.report.scores_csv import write_csv

    for lab in labs:
        for name, why in lab.refused.items():
            print(f"{lab.name}: {name!r} is left out: its name {why}", file=sys.stderr)
    if to is None:
        write_csv(labs, sys.stdout)
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    with to.open("w", newline="", encoding="utf-8") as file:
        write_csv(labs, file)
    print(f"wrote {to}")


def _report(labs: list[Lab], to: Path | None) -> None:
    from autograder.pages.report.class_page import page_of
    from autograder.pages.report.summary import as_text, summarize

    (lab,) = labs
    summary = summarize(lab)
    path = to or Path("grading/reports") / f"{lab.name}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page_of(summary), encoding="utf-8")
    print(f"{as_text(summary)}\n\nwrote {path}")
