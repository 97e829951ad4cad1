"""Keeps ready-made schedules, the library's and torch's, away from answers that are to make them.

What is not stopped here: answers that were worked out beforehand and brought along as data, which
source_rules.py names to the instructor, and a text that was copied.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

from autograder.exercise import Attempt, Finding
from shardlab.errors import RankError

BORROWED = "The schedule and what runs it are yours to write: the library's own are closed here."
LIBRARYS = ("shardlab.simulate.pipeline", "shardlab.pipeline", "torch.distributed.pipelining")
OPEN = ("schedule", "simulator")  # modules that make no schedule: what it is, and what it costs


@contextmanager
def on_its_own() -> Iterator[None]:
    """While an answer runs, ready-made schedules raise, by whatever name the answer knows them.

    The functions' code is changed, not their names: an answer may have brought the functions along.
    """
    for name in LIBRARYS[:2]:
        with suppress(ImportError):
            import_module(name)
    closed = {
        function: function.__code__
        for name, module in list(sys.modules.items())
        if name.startswith(LIBRARYS) and name.rpartition(".")[2] not in OPEN
        for function in functions_in(module)
    }
    unknown = LIBRARYS[2] not in sys.modules
    for function in closed:
        function.__code__ = refuses.__code__
    if unknown:
        sys.modules[LIBRARYS[2]] = None  # type: ignore[assignment]  # an import of it raises
    try:
        yield
    finally:
        for function, code in closed.items():
            function.__code__ = code
        if unknown:
            del sys.modules[LIBRARYS[2]]


def functions_in(module: ModuleType | None) -> Iterator[FunctionType]:
    """Those that it defines, its classes' as well."""
    for value in list(vars(module).values()) if module else []:
        if getattr(value, "__module__", None) != getattr(module, "__name__", ""):
            continue
        for member in vars(value).values() if inspect.isclass(value) else [value]:
            function = inspect.unwrap(member) if callable(member) else None
            if not isinstance(function, FunctionType) or function.__code__.co_freevars:
                continue
            if function.__module__ == value.__module__:  # and not enum's, in a class of its own
                yield function


def refuses(*_: Any, **__: Any) -> Any:
    raise PermissionError(
        "The schedule and what runs it are yours to write: the library's own are closed here."
    )


def borrowed(attempt: Attempt) -> Finding | None:
    error = attempt.error
    if isinstance(error, RankError) and (
        BORROWED in error.message or f"import of {LIBRARYS[2]}" in error.message
    ):
        mistake = "calls a ready-made schedule or what runs one: these are yours to write"
        return Finding("your answer", mistake, anyone="your answer")
    return None
