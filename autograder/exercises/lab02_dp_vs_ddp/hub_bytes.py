"""What each rank sends and receives in a step through a hub: pairs by rank, the hub first."""

from typing import Any

from autograder.exercise import Formula, Plain, questions

Pairs = list[tuple[float, float]]


def as_pairs(answer: Any) -> Plain:
    """Accept lists for tuples; return anything else as it is: the comparison reports it."""
    if isinstance(answer, dict):
        return {str(key): value for key, value in answer.items()}
    if not isinstance(answer, list | tuple):
        return answer
    return [tuple(pair) if isinstance(pair, list | tuple) else pair for pair in answer]


def no_pair_for_each_rank(sizes: list[int], right: Pairs, got: Any) -> str | None:
    if not isinstance(got, list) or any(type(p) is not tuple or len(p) != 2 for p in got):
        return "should return a list with a pair (sent, received) for each rank"
    if len(got) != len(right):
        return "should return one pair for each rank, world_size in all"
    return None


EXERCISE = Formula(
    points=2,
    cases=(
        questions("1,000,000 bytes, 4 ranks", (1_000_000, 4)),
        questions("630 bytes, 3 ranks and one", (630, 3), (630, 1)),
    ),
    read=as_pairs,
    forms=(no_pair_for_each_rank,),
)
