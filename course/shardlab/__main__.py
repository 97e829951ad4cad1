"""python -m shardlab picture PATH"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m shardlab", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("picture", help="draw the README's picture from a real run")
    command.add_argument("path", type=Path, help="a .png or .svg file")
    command.set_defaults(run=_picture)
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


if __name__ == "__main__":
    sys.exit(main())
