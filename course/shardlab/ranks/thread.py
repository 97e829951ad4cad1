"""What the threads of another process are at, as Linux tells it."""

from __future__ import annotations

import os
import platform

_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine())
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def run_ns(pid: int | None) -> int | None:
    """Nanoseconds its main thread has run: a blocked one's stand still. None where unknown."""
    ran_and_waited = _schedstat(f"/proc/{pid}/task/{pid}")
    return None if ran_and_waited is None else ran_and_waited[0]


def waited_ns(pid: int | None) -> int | None:
    """Nanoseconds its main thread was ready to run and had no processor. None where unknown."""
    ran_and_waited = _schedstat(f"/proc/{pid}/task/{pid}")
    return None if ran_and_waited is None else ran_and_waited[1]


def waits_ns(pid: int | None) -> dict[str, int]:
    """`waited_ns` of each thread, by its number. Empty where unknown."""
    found = {}
    for thread in _threads(pid):
        ran_and_waited = _schedstat(f"/proc/{pid}/task/{thread}")
        if ran_and_waited is not None:
            found[thread] = ran_and_waited[1]
    return found


def is_busy(pid: int | None) -> bool:
    """Whether a thread of it runs, waits for a processor or for a disk at this moment."""
    return any(_stat(f"/proc/{pid}/task/{thread}")[:1] in ("R", "D") for thread in _threads(pid))


def has_ended(pid: int | None) -> bool:
    """Whether nothing is left of it but, at most, what its parent is to be told."""
    return _stat(f"/proc/{pid}")[:1] in ("", "Z", "X")


def cpu_s(pid: int | None) -> tuple[float, float]:
    """(what its threads have used, what its children that ended had used): processor seconds."""
    fields = _stat(f"/proc/{pid}").split()
    if len(fields) < 15:
        return 0.0, 0.0
    own, children = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
    return own / _TICKS_PER_S, children / _TICKS_PER_S


def parent(pid: int | None) -> int | None:
    fields = _stat(f"/proc/{pid}").split()
    return int(fields[1]) if len(fields) > 1 else None


def descendants(pid: int | None) -> set[int]:
    """Its children, theirs, and so on."""
    found: set[int] = set()
    new = [pid]
    while new:
        each = new.pop()
        for thread in _threads(each):
            try:
                with open(f"/proc/{each}/task/{thread}/children") as file:
                    children = {int(child) for child in file.read().split()} - found
            except OSError:
                continue
            found |= children
            new += children
    return found


def waits_for_a_lock(pid: int | None) -> bool:
    """Whether it is inside futex, where condition variables wait; a sleep is another call."""
    try:
        with open(f"/proc/{pid}/task/{pid}/syscall") as file:
            return file.read().split()[0] == _FUTEX
    except (OSError, IndexError):
        return False


def _threads(pid: int | None) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _schedstat(folder: str) -> tuple[int, int] | None:
    try:
        with open(f"{folder}/schedstat") as file:
            ran, waited, *_ = file.read().split()
            return int(ran), int(waited)
    except (OSError, ValueError):
        return None


def _stat(folder: str) -> str:
    """From the state on: what stands before it is a name, which may hold anything."""
    try:
        with open(f"{folder}/stat") as file:
            return file.read().rpartition(") ")[2]
    except OSError:
        return ""
