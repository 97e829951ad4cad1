"""Where each rank's slice of the flat parameters begins and ends."""

from __future__ import annotations

from typing import Any

from autograder.exercise import Formula, Plain, questions
from autograder.exercises.common import as_pairs, is_pairs


def wrong_count(question: list[Any], right: Plain, bounds: Plain) -> str | None:
    if is_pairs(bounds) and len(bounds) != len(right):
        return "should return one pair per rank: world_size pairs"
    return None


EXERCISE = Formula(
    points=2,
    cases=(
        questions(
            "parameters of 3, 4 and 3 on 4 ranks, 5, 1", *(([3, 4, 3], n) for n in (4, 5, 1))
        ),
        questions("parameters of 100 and 7 on 8 ranks, 1 on 3", ([100, 7], 8), ([1], 3)),
    ),
    read=as_pairs,
    forms=(wrong_count,),
)
