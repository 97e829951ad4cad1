"""Cleans texts that student code influences: safe to show, and in grading deterministic."""

from __future__ import annotations

import re
from collections.abc import Collection

from shardlab.display.source import locate

_VARIABLE_PARTS = (
    (re.compile(r"0x[0-9a-fA-F]{4,}"), "0x…"),
    (re.compile(r"(127\.0\.0\.1|localhost|\[::1\]|::1)\]?:\d+"), r"\1:…"),
    (re.compile(r"\b(pid|PID|port)([ =:]*)\d+"), r"\1\2…"),
    (re.compile(r"/tmp/[\w.+-]+"), "/tmp/…"),
    (re.compile(r"ipykernel_\d+"), "ipykernel_…"),
    (re.compile(r"(?<![\d.])\d{10,}(\.\d+)?"), "…"),  # clock times; sizes are written 1,234
    (re.compile(r"(?<=\d\.)(\d{6})\d{4,}"), r"\1…"),  # the last digits of a fraction
)


_LINE_OF_A_CELL = re.compile(r"(/\S*ipykernel_\d+/\d+\.py), line (\d+)")
_TERMINAL_CODES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # colors and the like
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
MAX_CHARS = 2000


def forbidden_call(name: str, allows: Collection[str]) -> str:
    """``allows``: the calls of torch.distributed that a task allows."""
    if not allows:
        return f"calls {name}: this task needs no communication"
    return f"calls {name}: this task allows only {' and '.join(sorted(allows, reverse=True))}"


def with_cells(text: str) -> str:
    """In a kernel: /tmp/ipykernel_1/2.py, line 3  ->  cell 5, line 3.

    A rank that describes a line of the student's does not know the numbers of cells.
    """
    return _LINE_OF_A_CELL.sub(lambda line: locate(line[1], int(line[2]))[0], text)


def printable(text: str) -> str:
    """Safe to show: no control characters, no lone surrogates, at most MAX_CHARS."""
    text = _CONTROL_CHARACTERS.sub("\ufffd", _TERMINAL_CODES.sub("", text[:MAX_CHARS]))
    return text.encode(errors="replace").decode()


def deterministic(text: str) -> str:
    """`printable`, without what varies between runs: object at 0x7f3a…  ->  object at 0x…"""
    text = printable(text)
    for pattern, replacement in _VARIABLE_PARTS:
        text = pattern.sub(replacement, text)
    return text
