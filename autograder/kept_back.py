"""Marks functions whose text gives an answer away: students' copies do not have it.

What such a function returned for the visible cases is there instead, as plain data: release writes
it down (autograder/release/), recorded.py looks it up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from autograder.exercise import Case, Plain

Asked = Callable[[Case, Any], Iterable[tuple[Any, ...]]]
Function = TypeVar("Function", bound=Callable[..., Plain])

KEPT_BACK: dict[Callable[..., Plain], Asked] = {}


def kept_back(asked: Asked) -> Callable[[Function], Function]:
    """``asked(case, inputs)``: the arguments of each call there may be in a case."""

    def mark(function: Function) -> Function:
        KEPT_BACK[function] = asked
        return function

    return mark


def by_case(case: Case, inputs: Any) -> Iterable[tuple[Any, ...]]:
    """Of functions that are called with the case alone."""
    return [(case,)]


def never(case: Case, inputs: Any) -> Iterable[tuple[Any, ...]]:
    """Of functions that only hidden cases call, such as those that draw their sizes."""
    return []
