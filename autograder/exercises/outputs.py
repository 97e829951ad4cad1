"""What ranks returned, for diagnoses and budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from autograder.exercise import Attempt
from shardlab.run import Run


def finished(attempt: Attempt) -> Iterator[tuple[int, dict[str, Any]]]:
    """(rank, output) of a case in which no rank failed."""
    if attempt.error is None:
        yield from enumerate(attempt.outputs)


def from_outputs(key: str) -> Callable[[Run], list[int]]:
    """For a budget: a number that each rank returned, 0 where it did not come to its end."""

    def used(run: Run) -> list[int]:
        found = (out.get(key) if isinstance(out, dict) else 0 for out in run.outputs)
        return [number if type(number) is int else 0 for number in found]

    return used
