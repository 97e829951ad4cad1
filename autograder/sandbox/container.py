"""Inside: isolates one run of ranks or one notebook with namespaces, without exec.

bubblewrap (bubblewrap.py) has restricted the fork server's file system.  For each run the server
forks a child that enters new namespaces and forks again: the second process is PID 1 of its PID
namespace, runs our own code, and all other processes there die with it.  Every rank then enters
another user, mount and IPC namespace, so that ranks share only the network.  A run's nodes
(shardlab.nodes) belong to one more user namespace, in between: a rank passes through it into its
node, and has no capability there.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import signal
import socket
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from autograder.guest import private_folders
from autograder.sandbox import seccomp

_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_MS_BIND, _MS_REC = 4096, 16384
_PROC_FLAGS = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_CAPABILITY_VERSION_3 = 0x20080522
_SIOCSIFFLAGS, _IFF_UP_AND_RUNNING = 0x8914, 0x41

_MOST_FILES = 1 << 30  # above every file descriptor
# A second /proc, in place of the terminals: it shows a process only those that it may trace.
_OWN_PROC = "/dev/pts"

_libc = ctypes.CDLL(None, use_errno=True)


def enter_new_namespaces() -> None:
    """New user, PID, network, IPC and host-name namespaces, in which only loopback is up.

    The PID namespace applies to processes forked from now on.  Raises OSError.
    """
    _unshare(_NEWUSER | _NEWPID | _NEWNET | _NEWIPC | _NEWUTS | _NEWNS | _NEWCGROUP)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh", b"lo", _IFF_UP_AND_RUNNING)
        fcntl.ioctl(sock, _SIOCSIFFLAGS, request)


def become_first_process() -> None:
    """In PID 1: mounts a /proc of this container only. Raises OSError."""
    die_with_parent()
    _mount(b"proc", "/proc", b"proc", _PROC_FLAGS)
    try:
        _mount(b"proc", _OWN_PROC, b"proc", _PROC_FLAGS, b"hidepid=ptraceable")
    except OSError:  # Linux before 5.8 has no such option
        _mount(b"proc", _OWN_PROC, b"proc", _PROC_FLAGS)
    drop_capabilities()
    forbid_tracing()


def isolate(
    limits: Mapping[str, float], sees_others: bool = True, hidden: Sequence[str] = ()
) -> None:
    """Isolates a rank or a notebook's process, before any student code. Raises OSError.

    ``limits`` has the fields of autograder.sandbox.Limits.  ``sees_others``: whether /proc shows
    other ranks' processes, whose names and arguments could pass data.  ``hidden``: folders and
    files that are empty from now on, for its children and the programs that it starts as well.
    """
    # In a new user namespace, processes of the same user cannot read this process's memory.
    _unshare(_NEWUSER | _NEWNS | _NEWIPC)
    size = f"size={int(limits['scratch_bytes'])},nr_inodes=20000,mode=0700".encode()
    private_folders.PATHS = ("/tmp", "/dev/shm")
    with _mounts_kept("/tmp/"):
        for folder in private_folders.PATHS:
            _mount(b"tmpfs", folder, b"tmpfs", _MS_NOSUID | _MS_NODEV, size)
    os.chdir("/tmp")
    for path in hidden:
        if os.path.isdir(path):
            _mount(b"tmpfs", path, b"tmpfs", _MS_NOSUID | _MS_NODEV | _MS_RDONLY, b"size=4k")
        elif os.path.exists(path):
            _mount(b"/dev/null", path, b"", _MS_BIND)
    if not sees_others:
        _mount(_OWN_PROC.encode(), "/proc", b"", _MS_BIND)
    # If root grades, these are the machine's sysctls, and uid 0 may write them.
    for mounted in ("/proc", _OWN_PROC):
        _mount(b"none", mounted, b"", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _PROC_FLAGS)
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_NPROC, limits["processes"]),
        # The only memory limit if there is no cgroup; it includes torch's own mappings.
        (resource.RLIMIT_DATA, limits["memory_bytes"]),
    ):
        _, hard = resource.getrlimit(kind)
        at_most = int(most) if hard == resource.RLIM_INFINITY else min(int(most), hard)
        resource.setrlimit(kind, (at_most, at_most))
    drop_capabilities()
    seccomp.install()
    allow_tracing()


def close_all_but(*kept: int) -> None:
    """Closes all other file descriptors."""
    for fd, following in pairwise([-1, *sorted({*kept, _MOST_FILES})]):
        if fd + 1 < following:  # closerange(0, 0) closes all
            os.closerange(fd + 1, following)


def drop_capabilities() -> None:
    """Drops all of them permanently, even for programs executed as uid 0."""
    last = 0
    while _libc.prctl(_PR_CAPBSET_DROP, last, 0, 0, 0) == 0:
        last += 1
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, bytes(24)), "capset")


def forbid_tracing() -> None:
    """Other processes of this user cannot read this one's memory or trace it."""
    _prctl(_PR_SET_DUMPABLE, 0)


def allow_tracing() -> None:
    _prctl(_PR_SET_DUMPABLE, 1)


def die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _unshare(flags: int) -> None:
    uid, gid = os.geteuid(), os.getegid()
    _check(_libc.unshare(flags), "unshare")
    allow_tracing()  # otherwise the files below belong to root
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/thread-self/{name}", "w") as file:
            file.write(content)


@contextlib.contextmanager
def _mounts_kept(above: str) -> Iterator[None]:
    """Restores bubblewrap's mounts below a folder that is mounted over: a course may be in /tmp."""
    with open("/proc/thread-self/mountinfo") as file:
        paths = [line.split()[4].encode().decode("unicode_escape") for line in file]
    kept = {path: os.open(path, os.O_PATH) for path in paths if path.startswith(above)}
    yield
    for path, fd in kept.items():
        is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
        if not is_folder:
            os.close(os.open(path, os.O_CREAT, 0o600))
        _mount(f"/proc/thread-self/fd/{fd}".encode(), path, b"", _MS_BIND | _MS_REC)
        os.close(fd)


def _mount(what: bytes, where: str, kind: bytes, flags: int, options: bytes | None = None) -> None:
    _check(_libc.mount(what, where.encode(), kind, flags, options), f"mount {where}")


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, value, 0, 0, 0), f"prctl {option}")


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
