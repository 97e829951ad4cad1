"""Exposed, overlapped and waiting seconds of each rank, from intervals of all ranks."""

from __future__ import annotations

from typing import Any

from autograder.exercise import Formula, Plain, questions

KEYS = ("exposed_s", "overlapped_s", "waiting_s")


def not_by_rank(question: Any, right: Any, got: Any) -> str | None:
    """Before numbers are compared."""
    if not isinstance(got, list) or not all(isinstance(each, dict) for each in got):
        return "should return a list with a dict for each rank"
    if any(set(each) != set(KEYS) for each in got):
        return f"should return a dict with the keys {', '.join(KEYS)} for each rank"
    if len(got) != len(right):
        return "should return a dict for each rank, also for one that computes nothing"
    return None


def as_list(answer: Any) -> Plain:
    """A tuple is as good; a dict, whatever its keys are, has the wrong form."""
    return {} if isinstance(answer, dict) else list(answer) if isinstance(answer, tuple) else answer


EXERCISE = Formula(
    points=4,
    cases=(
        questions(
            "one call, two ranks",
            # Rank 1 computes longer; rank 0 waits for it.
            ([[(0, 3)], [(0, 5)]], [[(3, 9)], [(5, 9)]]),
            # Rank 0 computes until it needs the result.
            ([[(0, 3), (3, 7)], [(0, 5)]], [[(3, 9)], [(5, 9)]]),
            # Rank 0 computes on until the last rank has entered, and longer.
            ([[(0, 6)], [(0, 5), (8, 9)]], [[(3, 8)], [(5, 8)]]),
        ),
        questions(
            "several calls in flight",
            ([[(0, 4), (6, 7)], [(0, 4)]], [[(1, 8), (4, 10)], [(2, 8), (4, 10)]]),
            # The second call waits for rank 1 while the first one moves bytes.
            ([[(0, 1)], [(0, 6)]], [[(1, 9), (2, 12)], [(1, 9), (6, 12)]]),
            # Three ranks, each of them last once.
            (
                [[(0, 2), (5, 6)], [(0, 3), (5, 6)], [(0, 4)]],
                [
                    [(2, 5), (6, 10), (11, 12)],
                    [(3, 5), (7, 10), (10, 12)],
                    [(4, 5), (8, 10), (10, 12)],
                ],
            ),
        ),
        questions(
            "intervals that overlap, touch, or are empty, in any order",
            # An operator that called another one: two nested intervals, of a later first.
            ([[(6, 8), (0, 5), (1, 3)], [(2, 4), (4, 7), (0, 2)]], [[(2, 10)], [(7, 10)]]),
            ([[(1, 1), (0, 2)], []], [[(2, 2), (2, 6)], [(0, 2), (3, 6)]]),
        ),
    ),
    read=as_list,
    forms=(not_by_rank,),
)
