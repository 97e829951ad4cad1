"""python -m shardlab picture PATH | openers [--record NAME …]"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

CHAPTERS = Path(__file__).resolve().parent.parent / "chapters"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m shardlab", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("picture", help="draw the README's picture from a real run")
    command.add_argument("path", type=Path, help="a .png or .svg file")
    command.set_defaults(run=_picture)
    command = commands.add_parser("openers", help="draw the pictures that chapters open with")
    command.add_argument(
        "--record", nargs="+", default=[], metavar="NAME", help="run these chapters' recipes first"
    )
    command.set_defaults(run=_openers)
    arguments = parser.parse_args(argv)
    return int(arguments.run(arguments))


def _picture(arguments: argparse.Namespace) -> int:
    from shardlab import readme_picture  # imports matplotlib, which no other command needs

    try:
        run = readme_picture.save(arguments.path)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"drew {arguments.path} from {run}")
    return 0


def _openers(arguments: argparse.Namespace) -> int:
    from shardlab import openers

    if arguments.record:
        from shardlab.openers import recipes  # imports torch

        unknown = sorted(set(arguments.record) - set(recipes.RECIPES))
        if unknown:
            known = ", ".join(recipes.RECIPES)
            print(f"no recipe for {', '.join(unknown)}; there are: {known}", file=sys.stderr)
            return 2
        for name in arguments.record:
            openers.save(name, recipes.record(name))
            print(f"recorded {name}; the chapter's second cell:\n")
            print(openers.cell(name, openers.load(name)), end="\n\n")
    for name in openers.names():
        path = CHAPTERS / "openers" / f"{name}.svg"
        path.parent.mkdir(exist_ok=True)
        path.write_text(openers.draw(openers.load(name)), encoding="utf-8")
        print("drew", path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
