"""Bounds that students return, (start, stop) for each rank: what counts as such."""

from __future__ import annotations

from operator import index
from typing import Any

from autograder.exercise import Plain


def as_pairs(bounds: Any) -> Plain:
    """Lists will do for tuples, and numpy's or torch's whole numbers for Python's.

    Anything else stays as it is, for the comparison to name.
    """
    if not isinstance(bounds, list | tuple):
        return bounds
    return [tuple(map(index, pair)) if isinstance(pair, list | tuple) else pair for pair in bounds]


def is_pairs(bounds: Any) -> bool:
    return isinstance(bounds, list) and all(
        isinstance(pair, tuple) and len(pair) == 2 and all(type(edge) is int for edge in pair)
        for pair in bounds
    )
