"""The chain of work that decided when a run ended.

A rank that stands still for a communication does not decide when it goes on: the communication
does, and so does the rank that was the last to begin it. Followed backwards from the last thing
that ended, this leads from rank to rank to the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from shardlab.run.call import Call
from shardlab.run.matching import MatchedCalls, match_calls
from shardlab.run.states import State, calls_seen, moved_s

if TYPE_CHECKING:
    from shardlab.run.result import Run

STILL = ("exposed", "waiting")
FREE_S = 1e-4  # a wait that is shorter has found its communication done: it decides nothing


@dataclass(frozen=True)
class Stretch:
    """A part of the path on one rank. call: the communication that it is; None: the rank's work."""

    rank: int
    start_s: float
    end_s: float
    call: Call | None


def critical_path(run: Run, label: str | None = None, by: str = "records") -> list[State]:
    """What to shorten if the run, or its passes of ``label``, are to end earlier; by time.

    Each state is one of its rank's, cut to the path; ``call`` is the communication that the path
    follows there. Arguments and errors are those of `Run.step_time`, which also says what each
    source does not see. `StepTime.of(critical_path(run))` sums it by what was done.
    """
    return path_through(run, run.states(label, by), by)


def path_through(run: Run, states: Sequence[Sequence[State]], by: str) -> list[State]:
    """The same for these states of the run."""
    matched = match_calls(calls_seen(run.recorded, by))
    stretches = [*_backwards(states, {call: each for each in matched for call in each.calls})]
    return [*_cut(states, reversed(stretches))]


def hops(path: Sequence[State]) -> list[tuple[int, int, float]]:
    """(from rank, to rank, when) of each change of rank."""
    return [(a.rank, b.rank, b.start_s) for a, b in pairwise(path) if a.rank != b.rank]


def _backwards(
    states: Sequence[Sequence[State]], matched_with: Mapping[Call, MatchedCalls]
) -> Iterator[Stretch]:
    stops = [[*_stops(own)] for own in states]
    ended = [(own[-1].end_s, -rank) for rank, own in enumerate(states) if own]
    if not ended:
        return
    at_s, negative = max(ended)
    rank = -negative
    first_s = min(own[0].start_s for own in states if own)
    while at_s > first_s:
        # Each stop is followed once, so this ends even if two ranks wait for each other.
        while stops[rank] and stops[rank][-1].start_s >= at_s:
            stops[rank].pop()
        if not stops[rank]:
            yield Stretch(rank, first_s, at_s, None)
            return
        stop = stops[rank].pop()
        assert stop.call is not None  # see _stops
        free_s = min(stop.end_s, at_s)
        yield Stretch(rank, free_s, at_s, None)
        matched = matched_with[stop.call]
        moved = min(moved_s(matched, stop.call, stop.start_s), free_s)
        yield Stretch(rank, moved, free_s, stop.call)
        at_s = moved
        if moved == matched.all_began_s and moved > stop.call.start_s:  # another came later
            rank = matched.calls[-1].rank


def _stops(states: Iterable[State]) -> Iterator[State]:
    """When a rank stood still for a call, by time, without stops that decided nothing."""
    for state in states:
        if state.name in STILL and state.call and state.end_s - state.start_s >= FREE_S:
            yield state


def _cut(states: Sequence[Sequence[State]], stretches: Iterable[Stretch]) -> Iterator[State]:
    """The ranks' states within the stretches, which are by time."""
    position = [0] * len(states)
    for stretch in stretches:
        own, index = states[stretch.rank], position[stretch.rank]
        while index < len(own) and own[index].start_s < stretch.end_s:
            start_s = max(own[index].start_s, stretch.start_s)
            end_s = min(own[index].end_s, stretch.end_s)
            if end_s > start_s:
                yield replace(own[index], start_s=start_s, end_s=end_s, call=stretch.call)
            if own[index].end_s > stretch.end_s:
                break
            index += 1
        position[stretch.rank] = index
