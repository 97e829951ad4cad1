"""Named mistakes as changes of one formula's keyword arguments, and two of them at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations, product
from typing import Any

from autograder.exercise.formula import BOTH

Change = Mapping[str, Any]


def mistakes(
    formula: Callable[..., Any], changes: Mapping[str, Sequence[Change]]
) -> dict[str, tuple[Callable[..., Any], ...]]:
    """{message: wrong formulas}: each change alone, then two that change different arguments."""
    wrong: dict[str, tuple[Callable[..., Any], ...]] = {
        says: tuple(partial(formula, **each) for each in ways) for says, ways in changes.items()
    }
    for (first, ways), (second, others) in combinations(changes.items(), 2):
        both = [(a, b) for a, b in product(ways, others) if not a.keys() & b.keys()]
        if both:
            wrong[f"{first}{BOTH}{second}"] = tuple(partial(formula, **a, **b) for a, b in both)
    return wrong
