"""What the threads of a process are doing, according to Linux."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from collections.abc import Callable

_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine())
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def run_ns(pid: int | None) -> int | None:
    """Nanoseconds its main thread has run; constant while it is blocked. None if unknown."""
    ran_and_waited = _schedstat(f"/proc/{pid}/task/{pid}")
    return None if ran_and_waited is None else ran_and_waited[0]


def waited_ns(pid: int | None) -> int | None:
    """Nanoseconds its main thread was ready to run but had no processor. None if unknown."""
    ran_and_waited = _schedstat(f"/proc/{pid}/task/{pid}")
    return None if ran_and_waited is None else ran_and_waited[1]


def waited_ns_by_thread(pid: int | None) -> dict[str, int]:
    """`waited_ns` of each thread, by thread id. Empty if unknown."""
    return {thread: waited for thread, (_, waited) in _schedstat_by_thread(pid).items()}


def wanted_ns_by_thread(pid: int | None) -> dict[str, int]:
    """Nanoseconds that each thread of it and of its descendants has run or waited for a processor,
    by thread id."""
    return {
        thread: sum(ran_and_waited)
        for process in (pid, *descendants(pid))
        for thread, ran_and_waited in _schedstat_by_thread(process).items()
    }


def is_busy(pid: int | None) -> bool:
    """Whether one of its threads is running, or waiting for a processor or a disk."""
    return any(_stat(f"/proc/{pid}/task/{thread}")[:1] in ("R", "D") for thread in _threads(pid))


def others_are_busy() -> bool:
    """Whether another thread of this process is running, or waiting for a processor or a disk."""
    own = str(threading.get_native_id())
    others = (thread for thread in _threads(os.getpid()) if thread != own)
    return any(_stat(f"/proc/self/task/{thread}")[:1] in ("R", "D") for thread in others)


def become_idle(is_busy: Callable[[], bool], within_s: float) -> bool:
    """Wait until ``is_busy`` is false twice in a row; False if that takes longer than ``within_s``.

    Gloo's threads release a collective's tensors some time after it is done.
    """
    until, idle = time.monotonic() + within_s, 0
    while True:
        idle = 0 if is_busy() else idle + 1
        if idle == 2:
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.0005)  # also lets other threads of this process take the GIL


def has_ended(pid: int | None) -> bool:
    """Whether it has exited, possibly not yet reaped by its parent."""
    return _stat(f"/proc/{pid}")[:1] in ("", "Z", "X")


def cpu_s(pid: int | None) -> tuple[float, float]:
    """Processor seconds of (its threads, its children that have ended)."""
    fields = _stat(f"/proc/{pid}").split()
    if len(fields) < 15:
        return 0.0, 0.0
    own, children = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
    return own / _TICKS_PER_S, children / _TICKS_PER_S


def parent(pid: int | None) -> int | None:
    fields = _stat(f"/proc/{pid}").split()
    return int(fields[1]) if len(fields) > 1 else None


def children(pid: int | None) -> set[int]:
    found: set[int] = set()
    for thread in _threads(pid):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
            found |= {int(child) for child in file.read().split()}
    return found


def descendants(pid: int | None) -> set[int]:
    """Its children, their children, and so on."""
    found: set[int] = set()
    new = [pid]
    while new:
        more = children(new.pop()) - found
        found |= more
        new += more
    return found


def waits_for_a_lock(pid: int | None) -> bool:
    """Whether it is in the futex system call, as condition variables are (sleep uses another)."""
    try:
        return _line(f"/proc/{pid}/task/{pid}/syscall").split()[0] == _FUTEX
    except (OSError, IndexError):
        return False


def _threads(pid: int | None) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _schedstat_by_thread(pid: int | None) -> dict[str, tuple[int, int]]:
    found = {thread: _schedstat(f"/proc/{pid}/task/{thread}") for thread in _threads(pid)}
    return {thread: times for thread, times in found.items() if times is not None}


def _schedstat(folder: str) -> tuple[int, int] | None:
    try:
        ran, waited, *_ = _line(f"{folder}/schedstat").split()
        return int(ran), int(waited)
    except (OSError, ValueError):
        return None


def _stat(folder: str) -> str:
    """The fields from the state on; the name before it may contain anything."""
    try:
        return _line(f"{folder}/stat").rpartition(") ")[2]
    except OSError:
        return ""


def _line(path: str) -> str:
    """The one line of a file in /proc.

    Waits read some of these thousands of times: Python's buffer and decoder would double the time.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 4096).decode("latin-1")
    finally:
        os.close(file)
