"""Keeps what the library has ready-made, and torch's schedules, away from answers.

What is not stopped here: answers that were worked out beforehand and brought along as data, which
source_rules.py names to the instructor, and a text that was copied.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from types import CodeType, FunctionType, ModuleType
from typing import Any

from autograder.exercise import Attempt, Finding
from shardlab.errors import RankError

# Each stands for itself and all below it.
CLOSED = (
    "shardlab.estimate.",
    "shardlab.paper_layer.",
    "shardlab.pipeline.",
    "shardlab.reader.",
    "shardlab.shards.",
    "shardlab.simulate.pipeline.",
    "shardlab.widgets.",
    "torch.distributed.pipelining.",
)
# Of these, what makes no schedule: what one is, and what it costs.  It is there to be used.
OPEN = ("shardlab.simulate.pipeline.schedule.", "shardlab.simulate.pipeline.simulator.")
BORROWED = "is ready-made: this answer is yours to write"


@contextmanager
def on_its_own() -> Iterator[None]:
    """While an answer runs, ready-made answers raise, by whatever name it knows them.

    The functions' code is changed, not their names: an answer may have brought the functions along.
    """
    import_module("shardlab.simulate.pipeline")  # with the simulator come the schedules
    kept = {
        function: function.__code__
        for name, module in list(sys.modules.items())
        if is_closed(name)
        for function in functions_in(module)
    }
    for function in kept:
        function.__code__ = refusal_of(f"{function.__module__}.{function.__qualname__}")
    refuses_imports = NotHere()
    sys.meta_path.insert(0, refuses_imports)
    try:
        yield
    finally:
        sys.meta_path.remove(refuses_imports)
        for function, code in kept.items():
            function.__code__ = code


def answers_of(subject: Callable[..., Any], questions: Iterable[Any]) -> list[Any]:
    """Of a formula: what it says, on its own, to each question, which is its arguments."""
    with on_its_own():
        return [subject(**each) if isinstance(each, dict) else subject(*each) for each in questions]


def is_closed(module: str) -> bool:
    return f"{module}.".startswith(CLOSED) and not f"{module}.".startswith(OPEN)


class NotHere(MetaPathFinder):
    """Asked for modules that are not loaded yet."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if is_closed(fullname):
            raise PermissionError(f"{fullname} {BORROWED}")


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
    says = f"{name} {BORROWED}"
    return refuses.__code__.replace(
        co_consts=tuple(says if each == "its message" else each for each in constants)
    )


def refuses(*_: Any, **__: Any) -> Any:
    raise PermissionError("its message")


def borrowed(attempt: Attempt) -> Finding | None:
    error = attempt.error
    found = re.search(rf"(\S+) {BORROWED}", error.message) if isinstance(error, RankError) else None
    if found is None:
        return None
    mistake = f"calls {found[1]}, which is ready-made: this answer is yours to write"
    return Finding("your answer", mistake, anyone="your answer")
