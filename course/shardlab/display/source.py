"""Describes a line of code to a student: "cell 5, line 3" in a notebook, else the file."""

from __future__ import annotations

import ast
import linecache
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_LIBRARY_PATHS = [
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    sysconfig.get_paths()["stdlib"] + os.sep,
    "<frozen",
]


_reads_files = ContextVar("reads_files", default=True)


@contextmanager
def without_source_text() -> Iterator[None]:
    """In this context no source text is shown: files named by untrusted code are not opened."""
    token = _reads_files.set(False)
    try:
        yield
    finally:
        _reads_files.reset(token)


def exclude_folder(folder: str) -> None:
    """From now on, files in this folder do not count as user code."""
    _LIBRARY_PATHS.append(os.path.abspath(folder) + os.sep)


def is_user_code(filename: str) -> bool:
    """Whether a file is user code: not Shardlab's, an installed package's or Python's own."""
    return not filename.startswith(tuple(_LIBRARY_PATHS)) and "site-packages" not in filename


def locate(filename: str, line: int) -> tuple[str, str]:
    """("cell 5, line 3", the line's text); ("", "") if the line is unknown."""
    if not filename:
        return "", ""
    if not _reads_files.get():
        return f"{_short(filename)}, line {line}", ""
    text = linecache.getline(filename, line).strip()
    cell = _cell_number(filename)
    if cell is not None:
        return f"cell {cell}, line {line}", text
    try:
        shown = os.path.relpath(filename)
    except ValueError:  # another drive
        shown = filename
    return f"{filename if shown.startswith('..') else shown}, line {line}", text


def share_loop(filename: str, one: int, other: int) -> bool:
    """Whether two lines are in the same loop; False if the source is unknown."""
    if not _reads_files.get():
        return False
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError, RecursionError):  # a cell with magics
        return False
    loops = (node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While))
    return any(
        loop.lineno < min(one, other) and max(one, other) <= (loop.end_lineno or 0)
        for loop in loops
    )


def _short(filename: str) -> str:
    """A name without parts that differ between runs: folders, and IPython's file names."""
    if cell := re.match(r"<ipython-input-(\d+)-", filename):
        return f"cell {cell.group(1)}"
    if re.search(r"ipykernel_\d+/\d+\.py$", filename):
        return "a cell"
    return os.path.basename(filename)[-60:]


def quoted(filename: str, line: int) -> str:
    """One phrase: `cell 5, line 3: dist.recv(t, 0)`."""
    where, text = locate(filename, line)
    return f"{where}: {text}" if text else where


def _cell_number(filename: str) -> str | None:
    shell = _shell()
    if shell is None:
        return None
    named = shell.compile.format_code_name(filename)  # ("Cell", "In[5]") for a cell's file
    if named is None:
        return None
    match = re.search(r"\d+", named[1])
    return match.group() if match else None


def in_kernel() -> bool:
    """Whether this process is a notebook's kernel."""
    return getattr(_shell(), "kernel", None) is not None


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()
