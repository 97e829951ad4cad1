"""Reports changes that Python code makes in a folder, on machines that cannot hold system calls.

It compares the folder before each line of functions that may write.  So it misses states between
changes that one line makes in C, in a thread or through another program.  Grading uses
guest.held_calls, which sees them all.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

LIBRARIES = tuple({os.path.dirname(os.__file__), os.path.dirname(os.path.dirname(torch.__file__))})
MULTI_STEP_MODULES = {"shutil", "tempfile"}  # one call may change the disk several times
PATH_METHODS = {"open", "write_text", "write_bytes"}


def trace_changes(folder: str, on_change: Callable[[], Any]) -> None:
    """Report changes made by the functions that this thread calls from now on."""
    seen = sizes(folder)

    def compare(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal seen
        if event == "call" and not may_write(frame):
            return None
        now = sizes(folder)  # not traced: tracing is off while a trace function runs
        if now != seen:
            seen = now
            on_change()
        return compare

    sys.settrace(compare)


def sizes(folder: str) -> list[tuple[str, int]]:
    """The folder's files with their sizes, and its subfolders with -1.

    Uses os.scandir, which is fast: this is called for every line.
    """
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                found += [(entry.path, -1), *sizes(entry.path)]
            else:
                found.append((entry.path, entry.stat(follow_symlinks=False).st_size))
    return found  # incomplete if something is removed in the meantime


def may_write(frame: FrameType) -> bool:
    """Whether to trace the frame's lines: all of an answer's, and a few of a library's."""
    name, module = frame.f_code.co_name, frame.f_globals.get("__name__", "")
    if not frame.f_code.co_filename.startswith((*LIBRARIES, "<frozen")):
        return True
    return module in MULTI_STEP_MODULES or (module.startswith("pathlib") and name in PATH_METHODS)
