"""What the main thread of another process is at, as Linux tells it."""

from __future__ import annotations

import platform

_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine())


def run_ns(pid: int | None) -> int | None:
    """Nanoseconds it has run: those of a blocked thread stand still. None where unknown."""
    try:
        with open(f"/proc/{pid}/task/{pid}/schedstat") as file:
            return int(file.read().split()[0])
    except (OSError, IndexError, ValueError):
        return None


def waits_for_a_lock(pid: int | None) -> bool:
    """Whether it is inside futex, where condition variables wait; a sleep is another call."""
    try:
        with open(f"/proc/{pid}/task/{pid}/syscall") as file:
            return file.read().split()[0] == _FUTEX
    except (OSError, IndexError):
        return False
