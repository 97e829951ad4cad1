"""python -m autograder script LAB ANSWER --to script.py [--notebook LAB.ipynb]"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "script", help="an answer and its check, as a script for torchrun on any number of nodes"
    )
    command.add_argument("lab", metavar="LAB", help="such as 03_ring_all_reduce")
    command.add_argument("answer", metavar="ANSWER", help="such as reduce_scatter")
    command.add_argument("--to", type=Path, required=True, metavar="SCRIPT.py")
    command.add_argument("--notebook", type=Path, help="default: labs/LAB/LAB.ipynb")
    command.add_argument("--repo", type=Path, default=Path(), help="default: the current directory")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    # Imported here: exercises import torch.
    from autograder.job.script import notebook_of, script_of
    from shardlab.export.needed import CannotExport

    path: Path = arguments.to
    notebook = arguments.notebook or notebook_of(arguments.lab, arguments.repo)
    try:
        text = script_of(arguments.lab, arguments.answer, notebook, path.name)
        path.write_text(text, encoding="utf-8")
    except SyntaxError as error:
        print(f"{notebook}: a cell is not Python: {error}", file=sys.stderr)
        return 1
    except (CannotExport, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{path}: run it with torchrun, as its first lines say")
    return 0
