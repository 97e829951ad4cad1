"""Closes the modules of shardlab and torch that contain a ready-made solution of a lab.

It does not stop precomputed results that an answer includes as data, which the source rules report
to the instructor, or copied source code.
"""

from __future__ import annotations

import inspect
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

CLOSED = "is a ready-made solution: write this answer yourself"


@contextmanager
def modules_closed(closed: Sequence[str]) -> Iterator[None]:
    """While an answer runs, functions of these modules and their submodules raise PermissionError.

    This replaces the functions' code, not their names, because an answer may have imported them
    before.
    """
    if not closed:
        yield
        return
    for name in closed:  # the parent package stays open, and may import it
        import_module(name.rpartition(".")[0])
    functions = [
        f for name in closed for module in loaded_modules(name) for f in functions_in(module)
    ]
    codes = {function: function.__code__ for function in functions}
    for function in functions:
        function.__code__ = refusing_code(f"{function.__module__}.{function.__qualname__}")

    def find_spec(module: str, *_: object) -> None:
        """For modules that are not imported yet."""
        if is_closed(module, closed):
            raise PermissionError(f"{module} {CLOSED}")

    refuses_imports: Any = SimpleNamespace(find_spec=find_spec)
    sys.meta_path.insert(0, refuses_imports)
    try:
        yield
    finally:
        sys.meta_path.remove(refuses_imports)
        for function, code in codes.items():
            function.__code__ = code


def loaded_modules(name: str) -> Iterator[ModuleType]:
    """The module and its submodules. Searching all modules would copy a forked rank's heap."""
    if module := sys.modules.get(name):
        yield module
        for below in pkgutil.iter_modules(getattr(module, "__path__", ())):
            yield from loaded_modules(f"{name}.{below.name}")


def is_closed(module: str, closed: Sequence[str]) -> bool:
    return f"{module}.".startswith(tuple(f"{name}." for name in closed))


def functions_in(module: ModuleType | None) -> Iterator[FunctionType]:
    """Functions and methods that the module defines."""
    for value in list(vars(module).values()) if module else []:
        if getattr(value, "__module__", None) != getattr(module, "__name__", ""):
            continue
        for member in vars(value).values() if inspect.isclass(value) else [value]:
            function = inspect.unwrap(member) if callable(member) else None
            if not isinstance(function, FunctionType) or function.__code__.co_freevars:
                continue
            if function.__module__ == value.__module__:  # not inherited, as from enum
                yield function


def refusing_code(name: str) -> CodeType:
    """Code that raises PermissionError and names the function; it uses no globals of its module."""
    constants = refuse.__code__.co_consts
    message = f"{name} {CLOSED}"
    return refuse.__code__.replace(
        co_consts=tuple(message if each == "its message" else each for each in constants)
    )


def refuse(*_: Any, **__: Any) -> Any:
    raise PermissionError("its message")
