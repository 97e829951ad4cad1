"""Seccomp filters: programs that decide, for each system call of a process, whether it may run.

A filter holds for the thread that loads it and all that it starts, and cannot be removed.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

LOAD, JUMP_EQUAL, JUMP_ANY_BIT, AND, RETURN = 0x20, 0x15, 0x45, 0x54, 0x06
ALLOW, ERROR, KILL, NOTIFY = 0x7FFF0000, 0x00050000, 0x80000000, 0x7FC00000
Line = tuple[int, int, int, int]  # operation, lines to skip if true, if false, operand
_SET_MODE_FILTER = 1
# By machine: its audit architecture, its column in tables of system calls, the call seccomp(2).
_MACHINES = {"x86_64": (0xC000003E, 0, 317), "aarch64": (0xC00000B7, 1, 277)}
Numbers = dict[str, tuple[int | None, int | None]]  # of each system call, by machine


def is_known() -> bool:
    return platform.machine() in _MACHINES


def numbers_here(table: Numbers) -> dict[str, int]:
    """Raises KeyError for an unknown machine."""
    column = _MACHINES[platform.machine()][1]
    return {name: number for name, both in table.items() if (number := both[column]) is not None}


def first_lines() -> list[Line]:
    """Kill on a call of another architecture, else load its number."""
    architecture = _MACHINES[platform.machine()][0]
    # struct seccomp_data: number, machine, instruction pointer, 6 arguments
    check = [(LOAD, 0, 0, 4), (JUMP_EQUAL, 1, 0, architecture), (RETURN, 0, 0, KILL)]
    return [*check, (LOAD, 0, 0, 0)]


def load_argument(index: int) -> Line:
    """The lower 32 bits of an argument of the call."""
    return LOAD, 0, 0, 16 + 8 * index


def load(lines: list[Line], flags: int = 0) -> int:
    """Returns what seccomp(2) returns. Raises OSError."""
    program = b"".join(struct.pack("=HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog {unsigned short len; struct sock_filter *filter;}
    pointer = struct.pack("=HxxxxxxQ", len(lines), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    number = _MACHINES[platform.machine()][2]
    result: int = libc.syscall(number, _SET_MODE_FILTER, flags, pointer)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"the system refused a seccomp filter: {os.strerror(code)}")
    return result
