"""What each rank was doing at each moment, in a few categories.

Two sources, which `Run.step_time` describes: the records of calls, and torch.profiler's spans.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from shardlab.run.call import Call, MeasuredBlock, Span
from shardlab.run.matching import MatchedCalls, match_calls

STATES = ("compute", "overlapped", "exposed", "waiting", "loader", "other")
LOADER = "loader"  # the label of blocks in which a rank gets its next batch
SOURCES = ("records", "profiler")
SLACK_S = 1e-3  # between the profiler's clock and that of the calls
NO_SPANS = (
    "this run has no spans of torch.profiler: run the step under `with profile():` "
    '(from shardlab import profile), or use by="records"'
)


@dataclass(frozen=True)
class State:
    """What one rank was doing from ``start_s`` to ``end_s``.

    call: the one that it stood still for, while "exposed" or "waiting"; None if unknown.
    """

    rank: int
    name: str  # one of STATES
    start_s: float
    end_s: float
    call: Call | None = None


class Interval(NamedTuple):
    """A time in which something is true of a rank."""

    layer: str
    start_s: float
    end_s: float
    call: Call | None = None


@dataclass(frozen=True)
class Recorded:
    """All that a run recorded; times on one clock."""

    world_size: int
    calls: Sequence[Call]
    blocks: Sequence[MeasuredBlock]
    spans: Sequence[Span]


def states_of(run: Recorded, label: str | None, by: str) -> list[list[State]]:
    """By rank: what it did in its passes of ``label``, or in all of what is recorded, by time.

    Raises ValueError for a source that does not exist, or that recorded nothing.
    """
    if by not in SOURCES:
        raise ValueError(f"by is one of {', '.join(map(repr, SOURCES))}, not {by!r}")
    if by == "profiler" and not run.spans:
        raise ValueError(NO_SPANS)
    calls = calls_seen(run, by)
    matched_with = {call: matched for matched in match_calls(calls) for call in matched.calls}
    found = []
    for rank in range(run.world_size):
        windows = _windows(run, rank, label, by)
        layers = [*windows, *_loading(run.blocks, rank)]
        if by == "records":
            layers += _recorded(calls, rank, matched_with, windows)
            found.append([*_swept(rank, layers, _by_records)])
        else:
            layers += _profiled(run.spans, calls, rank, matched_with)
            found.append([*_swept(rank, layers, _by_profiler)])
    return found


# ---- what is true when ----


def _windows(run: Recorded, rank: int, label: str | None, by: str) -> list[Interval]:
    if label is not None:
        return [
            Interval("window", block.start_s, block.end_s)
            for block in run.blocks
            if (block.rank, block.label) == (rank, label)
        ]
    everything: list[Call | MeasuredBlock | Span] = [*run.spans]
    if by == "records":
        everything += [*run.calls, *run.blocks]
    own = [each for each in everything if each.rank == rank]
    if not own:
        return []
    # A call that never ended lasts as long as anything that is recorded.
    is_open = any(each.end_s is None for each in own)
    ends = [_end_s(each) for each in (everything if is_open else own)]
    return [Interval("window", min(each.start_s for each in own), max(ends))]


def _end_s(each: Call | MeasuredBlock | Span) -> float:
    return each.start_s if each.end_s is None else each.end_s


def _loading(blocks: Iterable[MeasuredBlock], rank: int) -> list[Interval]:
    return [
        Interval("loader", block.start_s, block.end_s)
        for block in blocks
        if (block.rank, block.label) == (rank, LOADER)
    ]


def _recorded(
    calls: Iterable[Call],
    rank: int,
    matched_with: dict[Call, MatchedCalls],
    windows: Sequence[Interval],
) -> Iterator[Interval]:
    """Calls in flight, and when the main thread stood still for them."""
    last_s = max((window.end_s for window in windows), default=0.0)
    for call in calls:
        if call.rank != rank:
            continue
        end_s = max(last_s, call.start_s) if call.end_s is None else call.end_s
        free_s = min(moved_s(matched_with[call], call, end_s), end_s)
        yield Interval("moving", free_s, end_s, call)
        if call.wait_start_s is not None:
            began_s = min(call.wait_start_s, end_s)
            arrived_s = max(began_s, free_s)
            yield Interval("stopped: waiting", began_s, arrived_s, call)
            yield Interval("stopped: exposed", arrived_s, end_s, call)


def _profiled(
    spans: Iterable[Span], calls: Iterable[Call], rank: int, matched_with: dict[Call, MatchedCalls]
) -> Iterator[Interval]:
    """Operators, and communication before and after all ranks have begun it."""
    call_of = {(c.start_s, c.end_s): c for c in calls if c.rank == rank}
    for span in spans:
        if span.rank != rank:
            continue
        if span.kind == "compute":
            yield Interval("computing", span.start_s, span.end_s)
            continue
        call = call_of.get((span.start_s, span.end_s))
        free_s = span.start_s
        if call is not None:
            free_s = moved_s(matched_with[call], call, span.end_s)
        yield Interval("entered", span.start_s, free_s, call)
        yield Interval("moving", free_s, span.end_s, call)


def moved_s(matched: MatchedCalls, call: Call, never_s: float) -> float:
    """When a call no longer waited for other ranks: `never_s` if it still does. One that ended
    before all had begun did not wait for them."""
    if call.end_s is not None:
        began_s = matched.transfer_start_s(call)
        return call.start_s if began_s is None else began_s
    return never_s if matched.all_began_s is None else matched.all_began_s


def calls_seen(run: Recorded, by: str) -> list[Call]:
    """The calls; by the profiler, with the times of their communication where it saw that.

    A span has no name that is unique: gloo reduces and scatters in an "all_reduce". It belongs to
    the first call that was under way when it began, and that has no span yet.
    """
    if by == "records":
        return [*run.calls]
    spans: dict[int, list[Span]] = defaultdict(list)
    for span in sorted(run.spans, key=lambda span: span.start_s):
        if span.kind == "communication":
            spans[span.rank].append(span)
    calls: dict[int, list[Call]] = defaultdict(list)
    for call in sorted(run.calls, key=lambda call: call.start_s):
        calls[call.rank].append(call)
    return [call for rank, own in calls.items() for call in _as_profiled(own, spans[rank])]


def _as_profiled(calls: Iterable[Call], spans: Iterable[Span]) -> Iterator[Call]:
    """One rank's calls; all by start time."""
    left = deque(calls)
    for span in spans:
        while left and _ended_before(span, left[0]):
            yield left.popleft()
        under_way = [*_under_way(span, left)]
        same = [call for call in under_way if span.name.endswith(f":{call.op}")]
        for call in (same or under_way)[:1]:
            left.remove(call)
            yield replace(call, start_s=span.start_s, end_s=span.end_s)
    yield from left


def _under_way(span: Span, calls: Iterable[Call]) -> Iterator[Call]:
    for call in calls:
        if call.start_s - SLACK_S > span.start_s:
            return
        if not _ended_before(span, call):
            yield call


def _ended_before(span: Span, call: Call) -> bool:
    return call.end_s is not None and call.end_s + SLACK_S < span.start_s


# ---- the state at a moment ----

Active = dict[str, Counter[Call | None]]


def _by_records(active: Active) -> tuple[str, Call | None]:
    for name in ("exposed", "waiting"):
        if stopped := active.get(f"stopped: {name}"):
            return name, next(iter(stopped))
    return ("overlapped" if active.get("moving") else "compute"), None


def _by_profiler(active: Active) -> tuple[str, Call | None]:
    if active.get("computing"):
        return ("overlapped" if active.get("moving") else "compute"), None
    for layer, name in (("moving", "exposed"), ("entered", "waiting")):
        if calls := active.get(layer):
            return name, next(iter(calls))
    return "other", None


def _swept(
    rank: int,
    intervals: Iterable[Interval],
    state_in: Callable[[Active], tuple[str, Call | None]],
) -> Iterator[State]:
    """States between one change and the next, joined where they are equal."""
    changes: list[tuple[float, int, Interval]] = []
    for each in intervals:
        if each.end_s > each.start_s:
            changes += [(each.start_s, 1, each), (each.end_s, -1, each)]
    changes.sort(key=lambda change: change[0])
    active: Active = defaultdict(Counter)
    last: State | None = None
    before_s = 0.0
    for at_s, step, each in changes:
        if at_s > before_s and active["window"]:
            name, call = ("loader", None) if active["loader"] else state_in(active)
            if last and (last.name, last.call, last.end_s) == (name, call, before_s):
                last = replace(last, end_s=at_s)
            else:
                if last:
                    yield last
                last = State(rank, name, before_s, at_s, call)
        before_s = at_s
        layer = active[each.layer]
        layer[each.call] += step
        if not layer[each.call]:
            del layer[each.call]
    if last:
        yield last
