"""python -m tools.openers [--record NAME …]"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools import openers
from tools.openers import live

CHAPTERS = Path(__file__).parents[2] / "course" / "chapters"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.openers", description="Draw the pictures that chapters open with."
    )
    parser.add_argument(
        "--record", nargs="+", default=[], metavar="NAME", help="run these chapters' recipes first"
    )
    arguments = parser.parse_args(argv)
    if arguments.record:
        from tools.openers import recipes  # imports torch

        known = {*recipes.RECIPES, live.NAME}
        if unknown := sorted(set(arguments.record) - known):
            print(
                f"no recipe for {', '.join(unknown)}; there are: {', '.join(sorted(known))}",
                file=sys.stderr,
            )
            return 2
        for name in arguments.record:
            if name == live.NAME:
                live.record()
                continue
            openers.save(name, recipes.record(name))
            print(f"recorded {name}; the chapter's second cell:\n")
            print(openers.cell(name, openers.load(name)), end="\n\n")
    for name in openers.names():
        path = CHAPTERS / "openers" / f"{name}.svg"
        path.parent.mkdir(exist_ok=True)
        path.write_text(openers.draw(openers.load(name)), encoding="utf-8")
        print("drew", path)
    for path, text in live.files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print("wrote", path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
