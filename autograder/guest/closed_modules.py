"""Closes the modules of shardlab and torch that contain a ready-made solution of a lab.

Ranks are never reopened: what could restore a function could also be found by student code.  It
does not stop precomputed results that an answer includes as data, which the source rules report to
the instructor, or copied source code, which is public.
"""

from __future__ import annotations

import linecache
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

CLOSED = "is a ready-made solution: write this answer yourself"

_LRU_CACHE = type(cache(len))
_closed: set[str] = set()  # in this process


def close_modules(names: Sequence[str]) -> None:
    """From now on functions of these modules and their submodules raise PermissionError.

    This replaces the functions' code, not their names, because an answer may have imported them
    before.  Call it before any student code runs: nothing keeps the original code, but it could be
    copied until then.
    """
    new = [name for name in names if name not in _closed]
    if not new:
        return
    for package in parents_of(new):  # they stay open, and may import closed ones
        import_module(package)
    for module in [module for name in new for module in loaded_modules(name)]:
        close(found_in(module))
        linecache.cache.pop(module.__file__ or "", None)
    _closed.update(new)

    def find_spec(module: str, *_: object) -> None:
        """For modules that are not imported yet."""
        if is_closed(module, new):
            raise PermissionError(f"{module} {CLOSED}")

    refuses_imports: Any = SimpleNamespace(find_spec=find_spec)
    sys.meta_path.insert(0, refuses_imports)


def prepare_to_close(*names: str) -> None:
    """In the process that forks ranks: finds what `close_modules` will change in each of them.

    In a rank this took 4 to 16 ms, and copied the memory pages of all that it looked at.
    """
    for module in [module for name in names for module in loaded_modules(name)]:
        found_in(module)


class Found(NamedTuple):
    """What a module defines: its functions with the code that will refuse calls, and caches."""

    refusing: list[tuple[FunctionType, CodeType]]
    caches: list[Any]


def close(found: Found) -> None:
    for function, code in found.refusing:
        function.__code__ = code
    for cached in found.caches:
        cached.cache_clear()


@cache
def found_in(module: ModuleType) -> Found:
    found = Found([], [])
    for each in defined_in(module):
        if isinstance(each, FunctionType):
            name = f"{each.__module__}.{each.__qualname__}"
            found.refusing.append((each, refusing_code(each, name)))
        else:
            found.caches.append(each)
    return found


def parents_of(names: Sequence[str]) -> list[str]:
    """The packages around them: a top-level package has none."""
    return sorted({name.rpartition(".")[0] for name in names} - {""})


@cache
def places_of(names: tuple[str, ...]) -> list[str]:
    """Where these modules are on disk: a program that an answer starts could import them there.
    Not those of torch, of which an open module may import a closed one at any time."""
    found = []
    for name in names:
        spec = None if name.startswith("torch.") else find_spec(name)
        if spec is not None:
            found += [*(spec.submodule_search_locations or [spec.origin or ""])]
    return [os.path.realpath(place) for place in found if os.path.exists(place)]


def close_functions(functions: Iterable[FunctionType], name: str) -> None:
    """``name``: what the error says was called."""
    for function in functions:
        function.__code__ = refusing_code(function, name)


def loaded_modules(name: str) -> Iterator[ModuleType]:
    """The module and its submodules. Searching all modules would copy a forked rank's heap."""
    if module := sys.modules.get(name):
        yield module
        for below in _names_below(module):
            yield from loaded_modules(f"{name}.{below}")


@cache
def _names_below(package: ModuleType) -> list[str]:
    """Of modules on disk."""
    return [below.name for below in pkgutil.iter_modules(getattr(package, "__path__", ()))]


def is_closed(module: str, closed: Sequence[str]) -> bool:
    return f"{module}.".startswith(tuple(f"{name}." for name in closed))


def defined_in(module: ModuleType) -> Iterator[Any]:
    """All functions that the module defines: in classes, containers and closures, decorated or
    not; and the objects that cache a function's results."""
    seen: set[int] = set()
    waiting: list[Any] = [*vars(module).values()]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType):
            if value.__globals__ is vars(module):
                yield value
            waiting += [getattr(value, "__wrapped__", None), *contents_of(value.__closure__)]
        elif isinstance(value, type):
            if value.__module__ == module.__name__:
                waiting += [*vars(value).values()]
        # First without isinstance: most values have types that the ABC's cache does not know yet.
        elif hasattr(type(value), "keys") and isinstance(value, Mapping):
            waiting += [*value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += [*value]
        elif isinstance(value, staticmethod | classmethod | MethodType):
            waiting.append(value.__func__)
        elif isinstance(value, partial | cached_property):
            waiting.append(value.func)
        elif isinstance(value, property):
            waiting += [value.fget, value.fset]
        elif isinstance(value, _LRU_CACHE):
            if value.__module__ == module.__name__:
                yield value
            waiting.append(value.__wrapped__)


def contents_of(closure: Sequence[CellType] | None) -> Iterator[Any]:
    for cell in closure or ():
        with suppress(ValueError):  # it is empty
            yield cell.cell_contents


def refusing_code(function: FunctionType, name: str) -> CodeType:
    """Code for it that raises PermissionError with this name; it uses no globals of its module."""
    constants = refuse.__code__.co_consts
    message = f"{name} {CLOSED}"
    return refuse.__code__.replace(
        co_consts=tuple(message if each == "its message" else each for each in constants),
        co_freevars=function.__code__.co_freevars,
    )


def refuse(*_: Any, **__: Any) -> Any:
    raise PermissionError("its message")
