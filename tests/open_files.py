"""The open files of this process, for tests that check that none is left open."""

from __future__ import annotations

import contextlib
import os


def open_files() -> set[tuple[str, str]]:
    """(descriptor, target) of each. Files that earlier tests left open may be closed at any time,
    so look for new ones instead of comparing counts."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of listdir itself
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return found
