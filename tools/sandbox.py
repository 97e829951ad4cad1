"""Find bubblewrap, which sandboxes student code during grading, or install it.

    python -m tools.sandbox            prints its path; as root installs Debian's package if needed

Without it, exits with status 1 and one line on stderr; grading then refuses to run, and its tests
are skipped.
"""

from __future__ import annotations

import shutil
import sys

from tools import debian

NONE = "bubblewrap (the command bwrap) is not installed: run `apt install bubblewrap` as root"


def get() -> str | None:
    """The path of bwrap, installed first if needed; None if that is impossible."""
    if not shutil.which("bwrap"):
        debian.install("bubblewrap for the tests", "bubblewrap")
    return shutil.which("bwrap")


if __name__ == "__main__":
    path = get()
    print(path or NONE, file=sys.stdout if path else sys.stderr)
    sys.exit(0 if path else 1)
