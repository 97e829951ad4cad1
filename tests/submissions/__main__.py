"""Print a planted mistake as the cells that a student would have written.

    python -m tests.submissions 05_fsdp                   the names of a lab's mistakes
    python -m tests.submissions 05_fsdp forgets_to_free   the cells of one
"""

from __future__ import annotations

import argparse
import sys

from autograder import exercises
from tests.submissions import planted


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.submissions", description="Print a planted mistake as whole cells."
    )
    parser.add_argument("lab", choices=exercises.labs(), metavar="LAB", help="such as 05_fsdp")
    parser.add_argument("name", nargs="?", help="the mistake; without one, all names are listed")
    chosen = parser.parse_args()
    mistakes = {mistake.name: mistake for mistake in planted.of_lab(chosen.lab)}
    if chosen.name is None:
        for name, mistake in mistakes.items():
            print(f"{name}  ({', '.join(mistake.loses)})")
        return 0
    if chosen.name not in mistakes:
        print(f"no mistake {chosen.name!r}: see python -m tests.submissions {chosen.lab}")
        return 1
    try:
        print("\n\n".join(mistakes[chosen.name].answers.values()))
    except ValueError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
