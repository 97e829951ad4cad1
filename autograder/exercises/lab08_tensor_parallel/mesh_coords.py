"""A rank's coordinates in a mesh with two axes, and the groups that it belongs to."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from autograder.exercise import Case, Formula, Plain, questions


def meshes(name: str, *sizes: tuple[int, int]) -> Case:
    """(rank, dp_size, tp_size) of all ranks of each mesh."""
    return questions(name, *((rank, dp, tp) for dp, tp in sizes for rank in range(dp * tp)))


def with_lists(place: Any) -> Plain:
    """Accepts tuples and ranges for lists. Raises TypeError for a number that is not an int, even a
    whole one: `dist.new_group` does not take it."""
    if not isinstance(place, dict):
        return place
    lists = {k: list(v) if isinstance(v, tuple | range) else v for k, v in place.items()}
    for values in lists.values():
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, float) or (isinstance(value, Tensor) and value.ndim == 0):
                raise TypeError(f"ranks and coordinates are Python's integers, not {value!r}")
    return lists


EXERCISE = Formula(
    points=2,
    cases=(
        meshes("2 × 4 and 3 × 2", (2, 4), (3, 2)),
        meshes("an axis of one", (1, 5), (4, 1), (1, 1)),
    ),
    read=with_lists,
)
