"""python -m autograder release [--lab LAB] [--to DIR] [--archive]"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from autograder.release.write import MANIFEST, ReleaseError, archives, manifest, write

NAME = "shardlab-students"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("release", help="build the students' package, without answers")
    command.add_argument(
        "--to", type=Path, metavar="DIR", help=f"a new or empty folder; default: dist/{NAME}"
    )
    command.add_argument(
        "--lab", dest="labs", action="append", default=[], metavar="LAB",
        help="release only this lab, with all chapters; repeatable; default: all labs",
    )  # fmt: skip
    command.add_argument("--archive", action="store_true", help="also write DIR.zip and DIR.tar.gz")
    command.add_argument("--repo", type=Path, default=Path(), help="default: the current directory")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    # Imported here: it imports torch, which the other commands do not need.
    from autograder.release.package import package

    repo = arguments.repo.resolve()
    folder = (arguments.to or repo / "dist" / NAME).resolve()
    try:
        _require_labs(arguments.labs)
        _require_built(repo)
        files = package(repo, sorted(set(arguments.labs)))
        write(files, folder)
        files[MANIFEST] = manifest(files)
        print(f"{folder}: {len(files)} files, {sum(map(len, files.values())) / 1e6:.1f} MB")
        for path in archives(files, folder) if arguments.archive else []:
            print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _require_labs(labs: list[str]) -> None:
    from autograder import exercises

    known = exercises.labs()
    if unknown := sorted(set(labs) - set(known)):
        raise ReleaseError(f"no lab {', '.join(unknown)}; there are: {', '.join(known)}")


def _require_built(repo: Path) -> None:
    if not (repo / "nbgrader_config.py").exists():
        raise ReleaseError(f"{repo} is not the root of the repository: it has no labs to release")
    from autograder.build.products import check

    drifts = [f"{drift.path.relative_to(repo)} {drift.why}" for drift in check(repo)]
    if drifts:
        raise ReleaseError("\n".join(drifts))
