from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from autograder.exercise import Case, Plain, questions
from autograder.exercise.hidden import EquivalentAnswer
from shardlab.recorded_runs import bottlenecks

Interval = Sequence[float]  # start_s, end_s
ByRank = Sequence[Sequence[Interval]]
Seconds = dict[str, float]

CASES = (
    questions("drawn intervals"),
    questions("one rank, no calls, no computation",
        ([[(0, 2), (3, 5)]], [[(1, 4)]]),
        ([[(0, 2)], [(0, 1)]], [[], []]),
        ([[], [], []], [[(0, 5)], [(2, 5)], [(1, 4)]]),
    ),
    questions(
        "intervals of nine recorded steps",
        *(bottlenecks.intervals(each) for each in bottlenecks.load().values()),
    ),
)  # fmt: skip
BOUNDARIES = {
    "divides": "not tested: nothing is divided",
    "does not divide": "not tested, as above",
    "one rank": "one rank, no calls, no computation",
    "more ranks than elements": "one rank, no calls, no computation",
    "an interval of length zero": "intervals that overlap, touch, or are empty, in any order",
    "a call that ends when the last rank enters it": "drawn intervals",
    "one call moves bytes while another one waits": "several calls in flight",
}
EQUIVALENT_ANSWERS: tuple[EquivalentAnswer, ...] = ()
RANKS_OF_DRAWN = (2, 3, 3, 4)


def draw(case: Case, rng: np.random.Generator) -> Plain:
    return [_drawn(rng, ranks) for ranks in RANKS_OF_DRAWN]


def _drawn(rng: np.random.Generator, ranks: int, calls: int = 5) -> Plain:
    """Milliseconds, as seconds. A call lasts until all ranks have entered it, or longer."""
    enters = np.sort(rng.integers(0, 60, size=(ranks, calls)), axis=1)
    ends = enters.max(axis=0) + rng.choice([0, 3, 8, 15], size=(ranks, calls))

    def seconds(starts: Any, stops: Any) -> list[Interval]:
        pairs = zip(starts, stops, strict=True)
        return [(int(start) / 1000, int(stop) / 1000) for start, stop in pairs]

    compute = []
    for _ in range(ranks):
        starts = rng.permutation(70)[:6]
        compute.append(seconds(starts, starts + rng.integers(0, 12, size=6)))
    return compute, [seconds(*own) for own in zip(enters, ends, strict=True)]


def covered_s(
    *intervals: Sequence[Interval], is_sorted: bool = True, keeps_latest: bool = True
) -> float:
    """The length of the union of all; ``keeps_latest``: the latest end so far."""
    total_s, until_s = 0.0, 0.0
    together = [(start_s, end_s) for group in intervals for start_s, end_s in group]
    for start_s, end_s in sorted(together) if is_sorted else together:
        total_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s) if keeps_latest else end_s
    return total_s


def lengths_s(intervals: Sequence[Interval]) -> float:
    return sum(end_s - start_s for start_s, end_s in intervals)


def by_rank(
    part: Callable[..., Seconds], entered: Callable[..., float] = max, clips: bool = True
) -> Any:
    """``part(compute, waits, moves)`` of each rank: parts of its calls before and after the moment
    that ``entered`` chooses among those in which the ranks entered the call; ``clips``: to the
    call."""

    def formula(compute: ByRank, calls: ByRank) -> list[Seconds]:
        entered_s = [entered(start for start, _ in of_call) for of_call in zip(*calls, strict=True)]
        found = []
        for own, of_rank in zip(compute, calls, strict=True):
            split = [
                (start, min(max(start, at_s), end) if clips else at_s, end)
                for (start, end), at_s in zip(of_rank, entered_s, strict=True)
            ]
            waits = [(start, at_s) for start, at_s, _ in split]
            moves = [(at_s, end) for _, at_s, end in split]
            found.append(part(own, waits, moves))
        return found

    return formula


def seconds_of(exposed_s: float, overlapped_s: float, waiting_s: float) -> Seconds:
    return {"exposed_s": exposed_s, "overlapped_s": overlapped_s, "waiting_s": waiting_s}


def parts(compute: Any, waits: Any, moves: Any) -> Seconds:
    exposed_s = covered_s(compute, moves) - covered_s(compute)
    waiting_s = covered_s(compute, moves, waits) - covered_s(compute, moves)
    return seconds_of(exposed_s, covered_s(moves) - exposed_s, waiting_s)


right = by_rank(parts)


def merged(intervals: Sequence[Interval]) -> list[Interval]:
    edges = sorted({edge for each in intervals for edge in each})
    return [
        each for each in pairwise(edges)
        if any(start <= each[0] and each[1] <= end for start, end in intervals)
    ]  # fmt: skip


def common_s(some: Sequence[Interval], others: Sequence[Interval]) -> float:
    """Of each interval with each other one: those that overlap count twice."""
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in some for b in others)


def one_by_one(
    merges_compute: bool,
    merges_calls: bool,
    waits_while_computing: bool,
    compute: Any,
    waits: Any,
    moves: Any,
) -> Seconds:
    """Adds up calls, or operators, that overlap."""
    own = merged(compute) if merges_compute else compute
    if merges_calls:
        waits, moves = merged(waits), merged(moves)
    exposed_s = lengths_s(moves) - common_s(own, moves)
    waiting_s = lengths_s(waits)
    if not waits_while_computing:
        waiting_s -= common_s(own, waits)
    return seconds_of(exposed_s, common_s(own, moves), waiting_s)


def each_by_itself(waits_while_computing: bool) -> tuple[Any, ...]:
    """`one_by_one` where calls, intervals of computation, or both may overlap."""
    return tuple(
        by_rank(partial(one_by_one, of_compute, of_calls, waits_while_computing))
        for of_compute, of_calls in ((False, False), (False, True), (True, False))
    )


def waits_first(compute: Any, waits: Any, moves: Any) -> Seconds:
    """Where one call waits and another moves bytes: waiting."""
    waiting_s = covered_s(compute, waits) - covered_s(compute)
    exposed_s = covered_s(compute, moves, waits) - covered_s(compute, waits)
    return seconds_of(exposed_s, parts(compute, waits, moves)["overlapped_s"], waiting_s)


def waits_twice(compute: Any, waits: Any, moves: Any) -> Seconds:
    """Where one call waits and another moves bytes: both."""
    waiting_s = covered_s(compute, waits) - covered_s(compute)
    return parts(compute, waits, moves) | {"waiting_s": waiting_s}


def waiting_in_all(length_s: Any, compute: Any, waits: Any, moves: Any) -> Seconds:
    return parts(compute, waits, moves) | {"waiting_s": length_s(waits)}


def exposed_while_computing(length_s: Any, compute: Any, waits: Any, moves: Any) -> Seconds:
    return parts(compute, waits, moves) | {"exposed_s": length_s(moves)}


def overlapped_before_it_moves(compute: Any, waits: Any, moves: Any) -> Seconds:
    found = parts(compute, waits, moves)
    in_calls_s = covered_s(waits, moves)
    return found | {"overlapped_s": in_calls_s - found["exposed_s"] - found["waiting_s"]}


def with_union(length_s: Any, compute: Any, waits: Any, moves: Any) -> Seconds:
    """``length_s``: of the union, taken as hint 3 does."""
    calls = [(start, end) for (start, _), (_, end) in zip(waits, moves, strict=True)]
    both_s = length_s(compute, moves)
    exposed_s = both_s - length_s(compute)
    return seconds_of(
        exposed_s, length_s(moves) - exposed_s, length_s(compute, moves, calls) - both_s
    )


def without_waiting(compute: Any, waits: Any, moves: Any) -> Seconds:
    found = parts(compute, waits, moves)
    return found | {"exposed_s": found["exposed_s"] + found["waiting_s"]}


def own_start(starts: Any) -> float:
    return -float("inf")


MISTAKES = {
    "counts waiting as exposed: until the last rank has entered a call, it moves no bytes, so look "
    "at the starts of the other ranks' calls with the same number": (
        by_rank(parts, own_start),
        by_rank(without_waiting),
    ),
    "waits only for the first rank: a call moves bytes once the last rank has entered it": by_rank(
        parts, min, clips=False
    ),
    "counts time twice: two calls may be in flight at the same moment, and intervals of "
    "computation may overlap, so take the length of their union, not the sum of lengths": (
        each_by_itself(waits_while_computing=False)
    ),
    "adds up call by call: a moment in which the rank computes is no wait, and one with two calls "
    "in flight counts once, so take lengths of unions": each_by_itself(waits_while_computing=True),
    "takes intervals in the order given: sort them for the length of their union": by_rank(
        partial(with_union, partial(covered_s, is_sorted=False))
    ),
    "forgets that an interval may contain the next ones: keep the latest end so far": by_rank(
        partial(with_union, partial(covered_s, keeps_latest=False))
    ),
    "counts as waiting where another call moves bytes: such a moment is exposed": (
        by_rank(waits_first),
        by_rank(waits_twice),
    ),
    "counts as waiting where the rank computes: then it does not wait": tuple(
        by_rank(partial(waiting_in_all, length_s)) for length_s in (covered_s, lengths_s)
    ),
    "counts as exposed where the rank computes: that is overlapped": tuple(
        by_rank(partial(exposed_while_computing, length_s)) for length_s in (covered_s, lengths_s)
    ),
    "counts as overlapped where a call still waits for a rank: it moves no bytes yet that "
    "computation could hide": by_rank(overlapped_before_it_moves),
}
