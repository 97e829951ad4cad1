"""System calls that change files, held until another process has looked and lets them continue.

The process that is watched, with all its threads and the programs it starts, stops before each such
call (seccomp's user notification); the process that watches gets a *listener* for these stops.  So
it sees every state of the files, whatever language or library makes the changes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import struct
import time

from autograder.guest import filters
from autograder.guest.filters import ALLOW, ERROR, JUMP_ANY_BIT, JUMP_EQUAL, NOTIFY, RETURN

_PR_SET_NO_NEW_PRIVS, _NEW_LISTENER = 38, 8
_CREATE_OR_TRUNCATE = 0o100 | 0o1000  # flags of open
_SHARED, _ANONYMOUS = 0x01, 0x20  # flags of mmap
_CLONE_RANGE, _CLONE, _DEDUPLICATE = 0x4020940D, 0x40049409, 0xC0189436  # requests of ioctl
_HELD: filters.Numbers = {
    "write": (1, 64), "pwrite64": (18, 68), "writev": (20, 66), "pwritev": (296, 70),
    "pwritev2": (328, 287), "sendfile": (40, 71), "copy_file_range": (326, 285),
    "splice": (275, 76), "truncate": (76, 45), "ftruncate": (77, 46), "fallocate": (285, 47),
    "creat": (85, None), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36),
    "unlink": (87, None), "unlinkat": (263, 35), "rmdir": (84, None), "mkdir": (83, None),
    "mkdirat": (258, 34), "mknod": (133, None), "mknodat": (259, 33),
}  # fmt: skip
_OPEN: filters.Numbers = {"open": (2, None), "openat": (257, 56)}
_OTHERS: filters.Numbers = {"mmap": (9, 222), "ioctl": (16, 29), "openat2": (437, 437)}
# They would change files without a call for each change.
_REFUSED: filters.Numbers = {"io_setup": (206, 0), "io_uring_setup": (425, 425)}

_NOTIFICATION = struct.Struct("=QII64x")  # id, thread, flags, the call
_RESPONSE = struct.Struct("=QqiI")  # id, value, error, flags
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
SETTLE_S = 0.05  # the longest wait for a call that was let through


def hold() -> int:
    """From now on this thread's calls are held, and those of all that it starts.

    Returns the listener's file descriptor.  Raises OSError if the system has no notifications.
    """
    if not filters.is_known():
        raise OSError(errno.ENOSYS, "no seccomp filter for this machine")
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    numbers = filters.numbers_here(_OTHERS)
    allowed, notify = (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, NOTIFY)
    refused, absent = (RETURN, 0, 0, ERROR | errno.EPERM), (RETURN, 0, 0, ERROR | errno.ENOSYS)
    lines = filters.first_lines()
    for number in filters.numbers_here(_HELD).values():
        lines += [(JUMP_EQUAL, 0, 1, number), notify]
    for number in filters.numbers_here(_REFUSED).values():
        lines += [(JUMP_EQUAL, 0, 1, number), refused]
    for name, number in filters.numbers_here(_OPEN).items():
        flags = filters.load_argument(1 if name == "open" else 2)
        changes = (JUMP_ANY_BIT, 0, 1, _CREATE_OR_TRUNCATE)
        lines += [(JUMP_EQUAL, 0, 4, number), flags, changes, notify, allowed]
    # Its flags are in memory; the C library then uses openat.
    lines += [(JUMP_EQUAL, 0, 1, numbers["openat2"]), absent]
    requests = [(JUMP_EQUAL, 0, 1, each) for each in (_CLONE, _CLONE_RANGE, _DEDUPLICATE)]
    of_ioctl = [line for jump in requests for line in (jump, notify)]
    lines += [(JUMP_EQUAL, 0, 8, numbers["ioctl"]), filters.load_argument(1), *of_ioctl, allowed]
    lines += [
        (JUMP_EQUAL, 0, 4, numbers["mmap"]),
        filters.load_argument(3),
        (JUMP_ANY_BIT, 2, 0, _ANONYMOUS),
        (JUMP_ANY_BIT, 0, 1, _SHARED),
        refused,  # changes of a file by stores to memory cannot be held
        allowed,
    ]
    return filters.load(lines, _NEW_LISTENER)


def next_held(listener: int) -> tuple[int, int] | None:
    """(id, thread) of a held call; waits for one. None if its process has ended."""
    buffer = bytearray(_NOTIFICATION.size)
    try:
        fcntl.ioctl(listener, _RECEIVE, buffer)
    except OSError:
        return None
    call, thread, _ = _NOTIFICATION.unpack(buffer)
    return call, thread


def let_continue(listener: int, call: int) -> None:
    with contextlib.suppress(OSError):  # its process has ended
        fcntl.ioctl(listener, _SEND, _RESPONSE.pack(call, 0, 0, _CONTINUE))


def wait_until_done(thread: int) -> None:
    """Waits until a thread whose call was let through waits for something else, or has ended."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{thread}/stat", "rb") as file:
                state = file.read().rpartition(b") ")[2][:1]
        except OSError:
            return
        if state != b"R":
            return
        time.sleep(0.0002)
