"""python -m autograder COMMAND: build notebooks, grade a class, report on it, release the course,
try the checks with changed solutions, or write a script that checks an answer on many nodes"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

from autograder.job import script_command as script


class _Parser(argparse.ArgumentParser):
    """The commands' parsers are of the same class: an abbreviated flag is an error in all."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)


def main(argv: list[str] | None = None) -> int:
    parser: argparse.ArgumentParser = _Parser(prog="python -m autograder", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    script.add_parser(commands)
    if Path(__file__).with_name("grading").is_dir():  # not in a students' copy
        _add_instructors_commands(commands)
    arguments = parser.parse_args(argv)
    try:
        code = int(arguments.run(arguments))
        sys.stdout.flush()
    except BrokenPipeError:  # of `| head`, which has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return code


def _add_instructors_commands(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    from autograder.grading.collect import collect_command as collect
    from autograder.grading.command import arguments as grading
    from autograder.grading.command import late_command as late
    from autograder.grading.command import move_gradebook
    from autograder.grading.roster import people_command as people
    from autograder.grading.roster import roster_command as roster
    from autograder.mutants import mutants_command as mutants
    from autograder.pages.archive import feedback_command as feedback
    from autograder.pages.on_submit import on_submit_command as on_submit
    from autograder.pages.report import report_command as report
    from autograder.pages.similar import similar_command as similar
    from autograder.release import release_command as release

    command = commands.add_parser("build", help="build every .ipynb from its .nb.py, and labs/")
    command.add_argument(
        "--check", action="store_true", help="write nothing; fail if a file is out of date"
    )
    command.add_argument(
        "--overwrite", action="store_true", help="also replace labs that somebody has run"
    )
    command.add_argument("--repo", type=Path, default=Path(), help="default: the current directory")
    command.set_defaults(run=_build)
    command = commands.add_parser("times", help="run chapters and labs, and store their seconds")
    command.add_argument("names", nargs="*", help="such as 04_zero; default: all")
    command.add_argument("--repo", type=Path, default=Path(), help="default: the current directory")
    command.set_defaults(run=_times)
    roster.add_parser(commands)
    people.add_parsers(commands)
    collect.add_parser(commands)
    grading.add_parser(commands)
    on_submit.add_parser(commands)
    late.add_parser(commands)
    move_gradebook.add_parser(commands)
    release.add_parser(commands)
    mutants.add_parser(commands)
    report.add_parser(commands)
    similar.add_parser(commands)
    feedback.add_parser(commands)


def _build(arguments: argparse.Namespace) -> int:
    # Imported here because nbgrader takes seconds to import.
    from autograder.build.products import build, check
    from autograder.build.text import SourceError

    repo = arguments.repo.resolve()
    try:
        if not (repo / "nbgrader_config.py").exists():
            raise SourceError(
                f"{repo} is not the root of the repository: it has no nbgrader_config.py"
            )
        if arguments.check:
            drifts = check(repo)
        else:
            written, drifts = build(repo, overwrite=arguments.overwrite)
            for path in written:
                print(f"built {path.relative_to(repo)}")
    except SourceError as error:
        print(error, file=sys.stderr)
        return 2
    for drift in drifts:
        print(f"{drift.path.relative_to(repo)} {drift.why}", file=sys.stderr)
    return 1 if drifts else 0


def _times(arguments: argparse.Namespace) -> int:
    from autograder.build import times

    times.measure(arguments.repo.resolve(), arguments.names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
