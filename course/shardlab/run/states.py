"""What each rank was doing at each moment, in a few categories.

Two sources, which `Run.step_time` describes: the records of calls, and torch.profiler's spans.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple, TypeVar

from shardlab.run.call import Call, MeasuredBlock, Span
from shardlab.run.matching import MatchedCalls, match_calls

Did = Call | MeasuredBlock | Span
OfRank = TypeVar("OfRank", bound=Did)

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


def best_source(run: Recorded) -> str | None:
    """What to show a run's states from, if nobody says; None: they say no more than its calls."""
    if run.spans:
        return "profiler"
    return "records" if any(block.label == LOADER for block in run.blocks) else None


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
    recorded: list[Did] = [*run.spans]
    if by == "records":
        recorded += [*run.calls, *run.blocks]
    else:
        recorded += _profiled_loaders(run)
    last_s = max((_end_s(each) for each in recorded), default=0.0)
    everything, own_calls = _by_rank(recorded), _by_rank(calls)
    blocks, spans = _by_rank(run.blocks), _by_rank(run.spans)
    found = []
    for rank in range(run.world_size):
        if label is None:
            windows = _whole(everything[rank], last_s)
        else:
            windows = _named(blocks[rank], label, "window")
        layers = [*windows, *_named(blocks[rank], LOADER, "loader")]
        if by == "records":
            layers += _recorded(own_calls[rank], matched_with, last_s)
            found.append([*_swept(rank, layers, _by_records)])
        else:
            layers += _profiled(spans[rank], own_calls[rank], matched_with)
            found.append([*_swept(rank, layers, _by_profiler)])
    return found


def _by_rank(all_of: Iterable[OfRank]) -> dict[int, list[OfRank]]:
    found: dict[int, list[OfRank]] = defaultdict(list)
    for each in all_of:
        found[each.rank].append(each)
    return found


# ---- what is true when ----


def _named(blocks: Iterable[MeasuredBlock], label: str, layer: str) -> list[Interval]:
    return [Interval(layer, b.start_s, b.end_s) for b in blocks if b.label == label]


def _whole(recorded: Sequence[Did], last_s: float) -> list[Interval]:
    """From the first to the last of what is recorded of a rank."""
    if not recorded:
        return []
    # A call that never ended lasts as long as anything that is recorded.
    is_open = any(each.end_s is None for each in recorded)
    end_s = last_s if is_open else max(_end_s(each) for each in recorded)
    return [Interval("window", min(each.start_s for each in recorded), end_s)]


def _profiled_loaders(run: Recorded) -> Iterator[MeasuredBlock]:
    """Those while some rank was profiled: steps before may have loaded, too."""
    first_s = min(span.start_s for span in run.spans)
    last_s = max(span.end_s for span in run.spans)
    for block in run.blocks:
        if block.label == LOADER and first_s <= block.end_s and block.start_s <= last_s:
            yield block


def _end_s(each: Did) -> float:
    return each.start_s if each.end_s is None else each.end_s


def _recorded(
    calls: Iterable[Call], matched_with: Mapping[Call, MatchedCalls], last_s: float
) -> Iterator[Interval]:
    """Calls in flight, and when the main thread stood still for them."""
    for call in calls:
        end_s = last_s if call.end_s is None else call.end_s
        free_s = min(moved_s(matched_with[call], call, end_s), end_s)
        yield Interval("moving", free_s, end_s, call)
        if call.wait_start_s is not None:
            began_s = min(call.wait_start_s, end_s)
            arrived_s = max(began_s, free_s)
            yield Interval("stopped: waiting", began_s, arrived_s, call)
            yield Interval("stopped: exposed", arrived_s, end_s, call)


def _profiled(
    spans: Iterable[Span], calls: Iterable[Call], matched_with: Mapping[Call, MatchedCalls]
) -> Iterator[Interval]:
    """Operators, and communication before and after all ranks have begun it."""
    call_of = {(call.start_s, call.end_s): call for call in calls}
    for span in spans:
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
    by_time = attrgetter("start_s")
    seen = (span for span in run.spans if span.kind == "communication")
    spans, calls = _by_rank(sorted(seen, key=by_time)), _by_rank(sorted(run.calls, key=by_time))
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

Active = dict[str, dict[Call | None, int]]  # by layer: how many intervals of each call


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
    active: Active = defaultdict(dict)
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
        if count := layer.get(each.call, 0) + step:
            layer[each.call] = count
        else:
            del layer[each.call]
    if last:
        yield last
