"""The files that this process has open, for tests that nothing is left open."""

from __future__ import annotations

import contextlib
import os


def open_files() -> set[tuple[str, str]]:
    """(descriptor, target) of each. Files left open by earlier tests may be closed at any time, so
    compare which ones are new, not how many there are."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return found
