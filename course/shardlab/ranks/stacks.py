"""Reads the stacks that faulthandler writes, on a crash or on request."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from shardlab.display.source import is_user_code, quoted

_STACK_LINE = re.compile(
    r'^\s*File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>\S+)', re.MULTILINE
)


def line_of_stack(stack: str) -> str:
    """The student's innermost line in the last stack."""
    for match in _frames(stack):
        if is_user_code(match["file"]):
            return quoted(match["file"], int(match["line"]))
    return ""


def blocked_in(stack: str) -> str:
    """The library function that the student's line called: "queue.get"; "" if it called one of C,
    which has no frame."""
    called = ""
    for match in _frames(stack):
        if is_user_code(match["file"]):
            return called
        module = os.path.splitext(os.path.basename(match["file"]))[0]
        called = f"{module}.{match['name']}"
    return ""


def _frames(stack: str) -> Iterator[re.Match[str]]:
    last = re.split(r"(?m)^(?=Fatal |Current thread |Stack )", stack)[-1]
    return _STACK_LINE.finditer(last)
