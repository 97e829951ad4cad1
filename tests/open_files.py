"""What this process holds open: for tests that nothing is left so."""

from __future__ import annotations

import contextlib
import os


def open_files() -> set[tuple[str, str]]:
    """(number, what it is) of each. What earlier tests left may be closed at any moment: compare
    by what is new, not by how many there are."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return found
