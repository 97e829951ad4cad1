"""What each rank sends and receives in a step through a hub: pairs by rank, the hub first."""

from typing import Any

from autograder.exercise import Formula, Plain, questions

Pairs = list[tuple[float, float]]


def as_pairs(answer: Any) -> Plain:
    """Accept lists for tuples; return anything else as it is: the comparison reports it."""
    if not isinstance(answer, list | tuple):
        return answer
    return [tuple(pair) if isinstance(pair, list | tuple) else pair for pair in answer]


EXERCISE = Formula(
    points=2,
    cases=(
        questions("1,000,000 bytes, 4 ranks", (1_000_000, 4)),
        questions("630 bytes, 3 ranks and one", (630, 3), (630, 1)),
    ),
    read=as_pairs,
)
