"""Linux namespaces: making, entering and mounting, by the C library's functions."""

from __future__ import annotations

import ctypes
import os

NEWNS, NEWUTS, NEWUSER, NEWNET = 0x20000, 0x4000000, 0x10000000, 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(kinds: int) -> None:
    """Move this process, which has one thread, into new namespaces. Raises OSError."""
    _check(_libc.unshare(kinds), "unshare")


def unshare_user() -> None:
    """Become the owner of a new user namespace, with the same user and group in it."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(NEWUSER)
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(content)


def current(kind: str) -> int:
    """A file descriptor that keeps this process's namespace: "net", "uts", "mnt" or "user"."""
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def enter(fd: int) -> None:
    _check(_libc.setns(fd, 0), "setns")


def replace_file(path: str, content: str) -> None:
    """Put a file in memory in its place, in a new mount namespace; no other process sees it."""
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", "/tmp", "tmpfs", 0)  # only until the file is in its place
    with open("/tmp/file", "w") as file:
        file.write(content)
    _mount("/tmp/file", path, "", _MS_BIND)
    _check(_libc.umount2(b"/tmp", 0), "umount /tmp")


def _mount(what: str, where: str, kind: str, flags: int) -> None:
    done = _libc.mount(what.encode(), where.encode(), kind.encode(), flags, None)
    _check(done, f"mount {where}")


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
