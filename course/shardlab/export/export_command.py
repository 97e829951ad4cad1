"""python -m shardlab export CHAPTER FUNCTION --to script.py [--launch N]

Unproven: what the script does on GPUs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from shardlab.export.needed import CannotExport


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "export", help="a function that a chapter launches, as a script for torchrun"
    )
    command.add_argument("chapter", metavar="CHAPTER", help="such as 03_ring_all_reduce, or 03")
    command.add_argument("function", metavar="FUNCTION", help="the first argument of launch")
    command.add_argument("--to", type=Path, required=True, metavar="SCRIPT.py")
    command.add_argument("--launch", type=int, metavar="N", help="which of several launches")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from shardlab.export.script import chapter_of, script_of

    path: Path = arguments.to
    try:
        chapter = chapter_of(arguments.chapter)
        text = script_of(chapter, arguments.function, arguments.launch, path.name)
        path.write_text(text, encoding="utf-8")
    except (CannotExport, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{path}: run it with torchrun, as its first lines say")
    return 0
