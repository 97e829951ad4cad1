"""The filters' numbers of system calls, against Linux's headers; arm64 is proven only by this."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
NEWER = {"memfd_secret": 447}  # headers of Linux before 5.14 lack it


def numbers(column: int) -> dict[str, int]:
    path = INCLUDE / HEADERS[column]
    if not path.exists():
        pytest.skip(f"no {path} here")
    defined = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", path.read_text(), re.MULTILINE)
    return NEWER | {name: int(number) for name, number in defined}


@pytest.mark.parametrize("column", [0, 1], ids=["x86_64", "aarch64"])
@pytest.mark.parametrize("table", TABLES)
def test_numbers_are_those_of_linux(table: str, column: int) -> None:
    linux = numbers(column)
    ours = {name: both[column] for name, both in TABLES[table].items()}
    assert ours == {name: linux.get(name) for name in ours}


def test_architectures_are_those_of_linux() -> None:
    """AUDIT_ARCH_…: the machine of ELF files, 64 bits, little endian."""
    machines = {"x86_64": 62, "aarch64": 183}
    ours = {name: each[0] for name, each in filters._MACHINES.items()}
    assert ours == {name: 0xC0000000 | number for name, number in machines.items()}
    assert [each[1] for each in filters._MACHINES.values()] == [0, 1]
