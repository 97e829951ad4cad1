"""The seccomp filters of both architectures: system call numbers against Linux's headers, and what
filters return, computed here.  No tests run on arm64, so these are the only tests of its filters.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import signal
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from autograder.guest import filters, held_calls
from autograder.sandbox import seccomp

# By column of the tables; arm64 uses the generic numbers.
HEADERS = (Path("x86_64-linux-gnu/asm/unistd_64.h"), Path("asm-generic/unistd.h"))
INCLUDE = Path("/usr/include")
TABLES: dict[str, Mapping[str, Sequence[int | None]]] = {
    "refused": seccomp._NUMBERS,
    "held": held_calls._HELD | held_calls._OPEN | held_calls._OTHERS | held_calls._REFUSED,
    "seccomp": {"seccomp": tuple(each[2] for each in filters._MACHINES.values())},
}
NEWER = {  # older headers lack them
    "memfd_secret": 447, "cachestat": 451, "futex_waitv": 449, "futex_wake": 454,
    "futex_wait": 455, "futex_requeue": 456, "setxattrat": 463, "landlock_create_ruleset": 444,
}  # fmt: skip


def numbers(column: int) -> dict[str, int]:
    path = INCLUDE / HEADERS[column]
    if not path.exists():
        pytest.skip(f"no {path} here")
    defined = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", path.read_text(), re.MULTILINE)
    return NEWER | {name: int(number) for name, number in defined}


@pytest.mark.parametrize("column", [0, 1], ids=["x86_64", "aarch64"])
@pytest.mark.parametrize("table", TABLES)
def test_numbers_match_linux(table: str, column: int) -> None:
    linux = numbers(column)
    ours = {name: both[column] for name, both in TABLES[table].items()}
    assert ours == {name: linux.get(name) for name in ours}


def test_architectures_match_linux() -> None:
    """AUDIT_ARCH_…: the machine of ELF files, 64 bits, little endian."""
    machines = {"x86_64": 62, "aarch64": 183}
    ours = {name: each[0] for name, each in filters._MACHINES.items()}
    assert ours == {name: 0xC0000000 | number for name, number in machines.items()}
    assert [each[1] for each in filters._MACHINES.values()] == [0, 1]


def returned(lines: Sequence[filters.Line], machine: int, call: int, *arguments: int) -> int:
    """What a filter returns, by an interpreter of the instructions that our filters use."""
    data = struct.pack("=IIQ6Q", call, machine, 0, *arguments, *[0] * (6 - len(arguments)))
    loaded, at = 0, 0
    while True:
        operation, if_true, if_false, operand = lines[at]
        at += 1
        if operation == filters.RETURN:
            return operand
        if operation == filters.LOAD:
            (loaded,) = struct.unpack_from("=I", data, operand)
        elif operation == filters.AND:
            loaded &= operand
        else:
            is_equal = operation == filters.JUMP_EQUAL
            at += if_true if (loaded == operand if is_equal else loaded & operand) else if_false


ALLOWED, KILLED = filters.ALLOW, filters.KILL
REFUSED, ABSENT = (filters.ERROR | code for code in (errno.EPERM, errno.ENOSYS))
OWN, OTHER = os.getpid(), os.getpid() + 1
THREAD, FILES, NEW_USER = 0x10000, 0x400, 0x10000000
TCP, STREAM, DATAGRAM = socket.IPPROTO_TCP, socket.SOCK_STREAM, socket.SOCK_DGRAM
GET_LOCK, DUPLICATE = 5, 1030
WAKE, REQUEUE, WAIT_BITSET, PRIVATE, CLOCK_REALTIME = 1, 3, 9, 0x80, 0x100
INSTALLED = {
    ("mount",): REFUSED,
    ("clone3",): ABSENT,
    ("clone", signal.SIGCHLD): ALLOWED,
    ("clone", THREAD | FILES): ALLOWED,
    ("clone", THREAD): REFUSED,
    ("clone", NEW_USER | FILES): REFUSED,
    ("close_range", 3, 9, 4): ALLOWED,
    ("close_range", 3, 9, 6): REFUSED,
    ("socket", socket.AF_INET, STREAM | socket.SOCK_CLOEXEC, 0): ALLOWED,
    ("socket", socket.AF_INET6, STREAM, TCP): ALLOWED,
    ("socket", socket.AF_INET, STREAM, 132): REFUSED,
    ("socket", socket.AF_INET, DATAGRAM, 0): REFUSED,
    ("socket", socket.AF_UNIX, STREAM, 0): REFUSED,
    ("socket", socket.AF_NETLINK, socket.SOCK_RAW, 0): ALLOWED,
    ("socket", socket.AF_NETLINK, socket.SOCK_RAW, 4): REFUSED,
    ("socketpair", socket.AF_UNIX, STREAM, 0): ALLOWED,
    ("kill", OTHER, 0): ALLOWED,
    ("fcntl", 3, GET_LOCK): ALLOWED,
    ("madvise", 0, 4096, 4): ALLOWED,
    ("madvise", 0, 4096, 20): REFUSED,
    ("madvise", 0, 4096, 21): REFUSED,
    ("fadvise64", 3, 0, 0, 4): REFUSED,
    ("mincore", 0, 4096, 0): REFUSED,
    ("cachestat", 3, 0, 0, 0): REFUSED,
    ("preadv2", 3, 0, 1, 0, 0, 0): ALLOWED,
    ("preadv2", 3, 0, 1, 0, 0, 8): REFUSED,
    ("futex", 0, WAKE): ALLOWED,
    ("futex_wake", 0, 1, 1, 0): REFUSED,
    ("prctl", 15, 0): ALLOWED,
}
CONNECTED = {
    ("socket", socket.AF_INET, STREAM, 0): REFUSED,
    ("kill", OWN, 0): ALLOWED,
    ("kill", OTHER, 0): REFUSED,
    ("sendto", 3, 0, 0, 0): ALLOWED,
    ("sendto", 3, 0, 0, 0x8000): REFUSED,
    ("sendmsg", 3, 0, 0x8000): REFUSED,
    ("prlimit64", 0, 7): ALLOWED,
    ("sched_getaffinity", OWN): ALLOWED,
    ("sched_getaffinity", OTHER): ABSENT,
    ("fcntl", 3, GET_LOCK): REFUSED,
    ("fcntl", 3, DUPLICATE): ALLOWED,
    ("flock", 3): REFUSED,
    ("clone", signal.SIGCHLD): ALLOWED,
    ("futex", 0, WAKE): REFUSED,
    ("futex", 0, WAKE | PRIVATE): ALLOWED,
    ("futex", 0, WAIT_BITSET | CLOCK_REALTIME): ALLOWED,  # of pthread_join
    ("futex", 0, REQUEUE): REFUSED,
}
MEASURED = {
    ("socketpair", socket.AF_UNIX, STREAM, 0): REFUSED,
    ("clone", THREAD): ALLOWED,
    ("fsetxattr", 3, 0, 0, 0, 0): REFUSED,
    ("prctl", 15, 0): ALLOWED,
    ("prctl", 0x53564D61, 0): REFUSED,
}
STARTED = {
    ("socket", socket.AF_NETLINK, socket.SOCK_RAW, 0): REFUSED,
    ("socket", socket.AF_INET, STREAM, 0): ALLOWED,
    ("clone", THREAD): ALLOWED,
}


@pytest.mark.parametrize("machine", filters._MACHINES)
@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (seccomp.install, INSTALLED),
        (seccomp.refuse_netlink, STARTED),
        (seccomp.refuse_connections, CONNECTED),
        (seccomp.refuse_hiding_places, MEASURED),
    ],
)
def test_what_a_filter_returns(
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    load: Callable[[], None],
    expected: Mapping[tuple[str, int], int],
) -> None:
    loaded: list[list[filters.Line]] = []
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(filters, "load", loaded.append)
    load()
    (lines,) = loaded
    assert all(0 <= skip < 256 for line in lines for skip in line[1:3])
    architecture, column, number = filters._MACHINES[machine]
    for (name, *arguments), value in expected.items():
        call = seccomp._NUMBERS[name][column] or 0
        assert returned(lines, architecture, call, *arguments) == value, (name, arguments)
        assert returned(lines, architecture ^ 1, call, *arguments) == KILLED
    assert returned(lines, architecture, number) == ALLOWED
    if machine == "x86_64" and load is seccomp.install:
        assert returned(lines, architecture, 0x40000000) == REFUSED  # x32
