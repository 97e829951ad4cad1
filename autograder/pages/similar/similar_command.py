"""python -m autograder similar LAB [--with FOLDER]: lists answers that share passages."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

SHOWN = 10


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `python -m autograder`."""
    command = commands.add_parser("similar", help="pairs of submissions that share passages")
    command.add_argument("lab", metavar="LAB", help="for example 03_ring_all_reduce")
    command.add_argument(
        "--with", dest="earlier", type=Path, action="append", default=[], metavar="FOLDER",
        help="submissions of an earlier term, a folder like grading/submitted; repeatable",
    )  # fmt: skip
    command.add_argument(
        "--to", type=Path, metavar="FILE", help="default: grading/reports/LAB.similar.html"
    )
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Exit status 2 if nothing can be compared."""
    # Imported here because nbgrader takes seconds to import.
    from autograder.pages.html.page import write_page
    from autograder.pages.similar.compare import compare
    from autograder.pages.similar.page import page_of
    from autograder.pages.similar.read import CannotCompare, read_all

    try:
        submissions = read_all(arguments.lab, arguments.earlier)
    except CannotCompare as error:
        print(error, file=sys.stderr)
        return 2
    comparison = compare(submissions.works, submissions.given)
    path = arguments.to or submissions.reports / f"{arguments.lab}.similar.html"
    write_page(path, page_of(submissions, comparison))
    pairs = comparison.pairs
    print(f"{arguments.lab}: {len(submissions.works)} submissions; similar pairs: {len(pairs)}")
    for pair in pairs[:SHOWN]:
        share = f"{pair.tokens} tokens, {pair.share:.0%} of the shorter submission"
        print(f"  {pair.first.student} and {pair.second.student}: {share}")
    if len(pairs) > SHOWN:
        print(f"  and {len(pairs) - SHOWN} more: see the page")
    for student, why in submissions.left_out:
        print(f"  {student}: {why}")
    print(f"Similarity is a reason to look, not a verdict. No grade was changed.\nwrote {path}")
    return 0
