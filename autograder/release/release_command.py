"""python -m autograder release [--to DIR] [--archive]"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from autograder.release.write import ReleaseError, archives, write

NAME = "shardlab-students"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("release", help="make the students' package, without answers")
    command.add_argument(
        "--to", type=Path, metavar="DIR", help=f"a new or empty folder; default: dist/{NAME}"
    )
    command.add_argument("--archive", action="store_true", help="DIR.zip and DIR.tar.gz as well")
    command.add_argument("--repo", type=Path, default=Path(), help="default: where you are")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    # Only here: oracles bring torch along, and other commands have no use for it.
    from autograder.release.package import package

    repo = arguments.repo.resolve()
    folder = (arguments.to or repo / "dist" / NAME).resolve()
    try:
        _require_built(repo)
        files = package(repo)
        write(files, folder)
        print(f"{folder}: {len(files)} files, {sum(map(len, files.values())) / 1e6:.1f} MB")
        for path in archives(files, folder) if arguments.archive else []:
            print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _require_built(repo: Path) -> None:
    if not (repo / "nbgrader_config.py").exists():
        raise ReleaseError(f"{repo} is not the root of the repository: it has no labs to release")
    from autograder.build import check

    drifts = [f"{drift.path.relative_to(repo)} {drift.why}" for drift in check(repo)]
    if drifts:
        raise ReleaseError("\n".join(drifts))
