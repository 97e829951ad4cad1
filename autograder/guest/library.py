"""Closes modules of the library, and of torch, that have a lab's answer ready-made.

What is not stopped here: answers that were worked out beforehand and brought along as data, which
the source rules report to the instructor, and a text that was copied.
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

CLOSED = "is ready-made: this answer is yours to write"


@contextmanager
def without(closed: Sequence[str]) -> Iterator[None]:
    """While an answer runs, these modules, and all below them, raise PermissionError.

    The functions' code is changed, not their names: an answer may have brought the functions along.
    """
    if not closed:
        yield
        return
    for name in closed:  # its package stays open, and may import it
        import_module(name.rpartition(".")[0])
    functions = [f for name in closed for module in loaded(name) for f in functions_in(module)]
    codes = {function: function.__code__ for function in functions}
    for function in functions:
        function.__code__ = refusal_of(f"{function.__module__}.{function.__qualname__}")

    def find_spec(module: str, *_: object) -> None:
        """Asked for modules that are not loaded yet."""
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


def loaded(name: str) -> Iterator[ModuleType]:
    """The module, and those below it. To go through all modules would copy a forked rank's heap."""
    if module := sys.modules.get(name):
        yield module
        for below in pkgutil.iter_modules(getattr(module, "__path__", ())):
            yield from loaded(f"{name}.{below.name}")


def is_closed(module: str, closed: Sequence[str]) -> bool:
    return f"{module}.".startswith(tuple(f"{name}." for name in closed))


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


def refusal_of(name: str) -> CodeType:
    """For the function of that name, whose module's globals it gets: its message is within it."""
    constants = refuses.__code__.co_consts
    says = f"{name} {CLOSED}"
    return refuses.__code__.replace(
        co_consts=tuple(says if each == "its message" else each for each in constants)
    )


def refuses(*_: Any, **__: Any) -> Any:
    raise PermissionError("its message")
