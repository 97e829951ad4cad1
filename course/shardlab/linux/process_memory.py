"""The memory that a process uses, wherever it keeps its data, as Linux counts it."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import re
import stat
import termios
from collections.abc import Collection

_PRIVATE = re.compile(rb"^(?:RssAnon|VmSwap|HugetlbPages):\s+(\d+) kB", re.MULTILINE)
# A mapping of a file in memory: memfd_create (a private one keeps a closed file, too), or
# mmap(MAP_SHARED | MAP_ANONYMOUS).
_SHARED = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ..?.(?:s \S+ \S+ (?=\d+ +/dev/zero \(deleted\))|"
    rb"[ps] \S+ \S+ (?=\d+ +/memfd:))(\d+)",
    re.MULTILINE,
)
_TMPFS = ("tmp", "dev/shm")  # of a rank in a sandbox
_INODE_BYTES = 1024  # of a file's name and its other data
_BLOCK_BYTES = 512  # the unit of st_blocks


def used_bytes(pid: int | None, others: Collection[int] = ()) -> int | None:
    """Bytes in private pages, swapped out or not, in shared mappings, in memory files, in pipes and
    in the files of a sandboxed process's own /tmp and /dev/shm.  None if they cannot be read.

    ``others``: processes that it has started, which are counted too.  Pages that a process shares
    with its parent since the fork count for both.
    """
    try:
        total = _private_bytes(pid)
    except OSError:
        return None
    for other in others:
        with contextlib.suppress(OSError):  # it has ended
            total += _private_bytes(other)
    return total + _in_memory_files((pid, *others)) + _in_own_tmpfs(pid)


def _private_bytes(pid: int | None) -> int:
    with open(f"{_folder(pid)}/status", "rb") as file:
        return 1024 * sum(map(int, _PRIVATE.findall(file.read())))


def _folder(pid: int | None) -> str:
    """/proc/PID, or the folder of another of its threads if the main thread has ended."""
    folder = f"/proc/{pid}"
    with contextlib.suppress(OSError):
        if not os.path.exists(f"{folder}/exe"):
            threads = (f"{folder}/task/{thread}" for thread in os.listdir(f"{folder}/task"))
            return next((each for each in threads if os.path.exists(f"{each}/exe")), folder)
    return folder


def _in_memory_files(pids: Collection[int | None]) -> int:
    """In pipes, and in memory files that are open or mapped; each counts once."""
    mapped: dict[int, int] = {}  # bytes by inode
    opened: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            folder = _folder(pid)
            with open(f"{folder}/maps", "rb") as file:
                for start, stop, inode in _SHARED.findall(file.read()):
                    mapped[int(inode)] = mapped.get(int(inode), 0) + int(stop, 16) - int(start, 16)
            with os.scandir(f"{folder}/fd") as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):  # just closed
                        _add_file(entry.path, opened)
    # Of an open file Linux counts the pages; of one that is only mapped, all could be in use.
    return sum((mapped | opened).values())


def _add_file(path: str, opened: dict[int, int]) -> None:
    found = os.stat(path)
    if stat.S_ISREG(found.st_mode) and not found.st_nlink:  # memory files have no name
        opened[found.st_ino] = found.st_blocks * _BLOCK_BYTES
    elif stat.S_ISFIFO(found.st_mode) and found.st_ino not in opened:
        unread = array.array("i", [0])
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, termios.FIONREAD, unread)
        finally:
            os.close(fd)
        opened[found.st_ino] = unread[0]


def _in_own_tmpfs(pid: int | None) -> int:
    total = 0
    for folder in _TMPFS:
        path = f"/proc/{pid}/root/{folder}"
        with contextlib.suppress(OSError):
            if os.stat(path).st_dev != os.stat(f"/{folder}").st_dev:  # else others use it as well
                used = os.statvfs(path)
                total += (used.f_blocks - used.f_bfree) * used.f_frsize
                total += (used.f_files - used.f_ffree) * _INODE_BYTES
    return total
