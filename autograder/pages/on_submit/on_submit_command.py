"""python -m autograder grade-on-submit: results within a minute of `nbgrader submit`."""

from __future__ import annotations

import argparse

from autograder.grading.command.arguments import add_worker_arguments


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `python -m autograder`."""
    parser = commands.add_parser(
        "grade-on-submit",
        help="grade what students submit through nbgrader's exchange, until interrupted",
    )
    parser.add_argument("labs", metavar="LAB", nargs="+", help="for example 03_ring_all_reduce")
    parser.add_argument(
        "--show", choices=("visible", "hidden"), default="visible",
        help="what students see: the visible cases, or also hidden cases and points "
        "(they can then probe hidden cases by submitting again); default: visible",
    )  # fmt: skip
    parser.add_argument(
        "--every", type=float, default=2.0, metavar="SECONDS",
        help="look for new submissions this often; default: 2",
    )  # fmt: skip
    add_worker_arguments(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from autograder.pages.on_submit.serve import serve  # nbgrader takes seconds to import

    return serve(arguments)
