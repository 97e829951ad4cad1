"""Reads a recorded step of FSDP2 as timelines of its units, and as settings of the simulator.

``run.memory[rank].units`` records when a unit starts and stops being whole, ``run.calls`` what is
sent, and ``run.memory`` the live bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

import numpy as np

from shardlab.estimate.alpha_beta import AlphaBeta
from shardlab.run import Call, Run
from shardlab.run.live_memory import RankMemory, UnitEvent
from shardlab.simulate.fsdp import CATEGORIES, ROOT, Span, StepSettings, UnitTimeline
from shardlab.widgets.memory_log import thin

MAX_POINTS = 1500  # of one rank's live bytes
MAX_BYTES_PER_S = 1e12  # for transfers too short to measure: faster than any link


@dataclass(frozen=True)
class RecordedStep:
    timelines: tuple[UnitTimeline, ...]  # by rank
    sizes: tuple[float, ...]  # by row: bytes of the whole unit
    world_size: int  # ranks that share a unit; with HSDP, not all ranks
    copies: tuple[tuple[float, float], ...]  # bytes and seconds of each copy from a buffer

    def settings(self) -> StepSettings:
        """The simulator's settings: this step's sizes and rules, and the means of its times.

        Raises ValueError if only the root is sharded.
        """
        if len(self.sizes) < 2:
            raise ValueError("only the root was sharded: call fully_shard on its layers, too")
        forward_s, backward_s = (
            fmean(
                sum(span.end_s - span.start_s for span in _of(timeline, kind) if span.row != ROOT)
                for timeline in self.timelines
            )
            for kind in ("forward", "backward")
        )
        message_s, link_bytes_per_s = self._transfers()
        rates = [count / seconds for count, seconds in self.copies if seconds > 0]
        first = self.timelines[0]
        turn_s = max(span.end_s for span in _of(first, "forward"))
        head_s = fmean(_head_s(timeline) for timeline in self.timelines)
        return StepSettings(
            units=len(self.sizes) - 1,
            forward_prefetch=_ahead(first, "forward", turn_s),
            backward_prefetch=_ahead(first, "backward", turn_s),
            reshard_after_forward=any(span.start_s >= turn_s for span in _of(first, "gather")),
            world_size=self.world_size,
            parameter_bytes=sum(self.sizes),
            root_bytes=self.sizes[ROOT],
            overlap=any(map(_overlaps, self.timelines)),
            forward_s=forward_s,
            backward_ratio=backward_s / forward_s,
            head_s=head_s,
            link_bytes_per_s=link_bytes_per_s,
            message_s=message_s,
            copy_bytes_per_s=median(rates) if rates else MAX_BYTES_PER_S,
        )

    def _transfers(self) -> tuple[float, float]:
        """Seconds per message, and bytes per second, of all-gathers and reduce-scatters."""
        spans = [
            s for each in self.timelines for kind in ("gather", "reduce") for s in _of(each, kind)
        ]
        share = (self.world_size - 1) / self.world_size
        sent = [share * self.sizes[span.row] for span in spans]
        seconds = [max(span.end_s - span.start_s, 1e-7) for span in spans]
        try:
            fit = AlphaBeta.fit(1, sent, seconds)
        except ValueError:  # all have the same size
            return 0.0, sum(sent) / sum(seconds)
        # The fit is of relative errors, so one slow message changes it little; keep the sum.
        longer = sum(seconds) / float(fit.seconds(1, sent).sum())
        return longer * fit.alpha_s, min(fit.bytes_per_s / longer, MAX_BYTES_PER_S)


def read_step(run: Run, step: int = -1) -> RecordedStep:
    """One pass of forward and backward; times are from the first rank's start of it.

    step: which pass, counted from 0; −1 is the last.  Raises ValueError without such a pass, or if
    no unit of FSDP2 was recorded.
    """
    if not all(memory.units for memory in run.memory):
        raise ValueError("no unit was recorded: use fully_shard, and launch(..., memory=True)")
    windows = [_window(memory, step) for memory in run.memory]
    origin_s = min(start_s for start_s, _ in windows)
    timelines, sizes, copies = [], {}, []
    names = _names(run.memory[0], windows[0])
    world_size = 1
    for rank, window in enumerate(windows):
        reader = _Reader(run, rank, names, window, origin_s)
        timelines.append(reader.timeline())
        sizes.update(reader.sizes)
        copies += [(reader.sizes.get(row, 0.0), seconds) for row, seconds in reader.copies]
        world_size = max(world_size, reader.world_size)
    if world_size < 2:
        raise ValueError("no all-gather was recorded: units are sharded over two ranks or more")
    return RecordedStep(
        tuple(timelines),
        tuple(sizes.get(row, 0.0) for row in range(len(names))),
        world_size,
        tuple(copies),
    )


def _window(memory: RankMemory, step: int) -> tuple[float, float]:
    phases = [phase for phase in memory.phases if phase.name in ("forward", "backward")]
    passes = [
        (first.start_s, second.end_s)
        for first, second in pairwise(phases)
        if (first.name, second.name) == ("forward", "backward")
    ]
    try:
        return passes[step]
    except IndexError:
        raise ValueError(
            f"step={step}: the run recorded {len(passes)} passes of forward and backward"
        ) from None


def _names(memory: RankMemory, window: tuple[float, float]) -> tuple[str, ...]:
    """Root first, then the units in the order of their first use."""
    used = [e for e in memory.units if e.event == "before forward" and _within(e, window)]
    used.sort(key=lambda event: event.start_s)
    return ("root", *dict.fromkeys(event.unit for event in used if event.unit))


def _within(event: UnitEvent, window: tuple[float, float]) -> bool:
    return window[0] <= event.start_s <= window[1]


class _Reader:
    """One rank's step."""

    def __init__(
        self,
        run: Run,
        rank: int,
        names: tuple[str, ...],
        window: tuple[float, float],
        origin_s: float,
    ) -> None:
        self.memory, self.names, self.window, self.origin_s = (
            run.memory[rank],
            names,
            window,
            origin_s,
        )
        self.rows = {name: row for row, name in enumerate(names)} | {"": ROOT}
        self.calls = [call for call in run.calls if call.rank == rank]
        self.spans: list[Span] = []
        self.sizes: dict[int, float] = {}
        self.copies: list[tuple[int, float]] = []
        self.world_size = 1
        self.since: dict[tuple[int, str], float] = {}  # (row, kind) -> start

    def timeline(self) -> UnitTimeline:
        for event in sorted(self.memory.units, key=lambda event: event.end_s):
            row = self.rows.get(event.unit)
            if row is not None and _within(event, self.window):
                self.read(event, row)
            elif row is not None and event.start_s < self.window[0]:
                self.before(event, row)
        ends = [span.end_s for span in self.spans]
        end_s = max(ends, default=self.window[1])
        for row, kind in list(self.since):
            self.end(row, kind, end_s)
        self.spans.sort(key=lambda span: span.start_s)
        times_s, live = self.live(end_s)
        spans = tuple(
            span._replace(start_s=span.start_s - self.origin_s, end_s=span.end_s - self.origin_s)
            for span in self.spans
        )
        return UnitTimeline(self.names, spans, times_s, live, end_s - self.origin_s)

    def before(self, event: UnitEvent, row: int) -> None:
        """A unit may already be whole, if the last backward pass kept it."""
        if event.event == "gather":
            self.size(row, self.call(event, "all_gather"))
        elif event.event == "copy":
            self.since[row, "whole"] = self.window[0]
        elif event.event == "free":
            self.since.pop((row, "whole"), None)

    def read(self, event: UnitEvent, row: int) -> None:
        if event.event == "gather":
            self.transfer(event, row, "gather", "all_gather")
            self.start_later(event.end_s)
        elif event.event == "copy":
            self.copies.append((row, event.end_s - event.start_s))
            self.since.setdefault((row, "whole"), event.end_s)
        elif event.event == "free":
            self.end(row, "whole", event.start_s)
        elif event.event == "before forward":
            self.since.setdefault((row, "forward"), event.end_s)
        elif event.event == "after forward":
            self.end(row, "forward", event.start_s)
        elif event.event == "before backward":
            self.since.setdefault((row, "backward"), event.end_s)
        elif event.event == "reduce":
            self.end(row, "backward", event.start_s)
            self.transfer(event, row, "reduce", "reduce_scatter")

    def start_later(self, at_s: float) -> None:
        """Delay the start: before it computes, a unit issues the all-gathers of the next ones."""
        for row, kind in self.since:
            if kind in ("forward", "backward") and row != ROOT:
                self.since[row, kind] = at_s

    def end(self, row: int, kind: str, end_s: float) -> None:
        start_s = self.since.pop((row, kind), None)
        if start_s is not None:
            self.spans.append(Span(row, kind, start_s, end_s))

    def transfer(self, event: UnitEvent, row: int, kind: str, op: str) -> None:
        """Record a transfer; without a call there was none, because there was nothing to send."""
        call = self.call(event, op)
        if call is None:
            return
        end_s = event.end_s if call.end_s is None else call.end_s
        self.spans.append(Span(row, kind, call.start_s, end_s))
        if kind == "gather":
            self.size(row, call)

    def size(self, row: int, call: Call | None) -> None:
        if call is not None:
            self.sizes[row] = float(call.bytes * len(call.group))
            self.world_size = max(self.world_size, len(call.group))

    def call(self, event: UnitEvent, op: str) -> Call | None:
        first = bisect_left(self.calls, event.start_s, key=lambda call: call.start_s)
        for call in self.calls[first:]:
            if call.start_s > event.end_s:
                break
            if call.op.startswith(op):
                return call
        return None

    def live(self, end_s: float) -> tuple[tuple[float, ...], dict[str, tuple[float, ...]]]:
        times_s = self.memory.times_s
        rows = np.array([self.memory.live_bytes[name] for name in CATEGORIES])
        first = max(0, int(np.searchsorted(times_s, self.window[0], side="right")) - 1)
        last = int(np.searchsorted(times_s, end_s, side="right"))
        times_s, rows = np.maximum(times_s[first:last], self.window[0]), rows[:, first:last]
        kept = thin(rows.sum(axis=0), MAX_POINTS)
        live = {
            name: tuple(map(float, row[kept])) for name, row in zip(CATEGORIES, rows, strict=True)
        }
        return tuple(float(at_s - self.origin_s) for at_s in times_s[kept]), live


def _of(timeline: UnitTimeline, kind: str) -> list[Span]:
    return [span for span in timeline.spans if span.kind == kind]


def _head_s(timeline: UnitTimeline) -> float:
    """The time from the last unit's forward to the first transfer or computation of backward."""
    turn_s = max(span.end_s for span in _of(timeline, "forward") if span.row != ROOT)
    kinds = ("gather", "backward")
    later = [s.start_s for kind in kinds for s in _of(timeline, kind) if s.start_s > turn_s]
    return min(later, default=turn_s) - turn_s


def _ahead(timeline: UnitTimeline, kind: str, turn_s: float) -> int:
    """The most units whose all-gather started before another one had finished computing."""
    forward = kind == "forward"
    gathers = [
        span
        for span in _of(timeline, "gather")
        if span.row != ROOT and (span.start_s < turn_s) == forward
    ]
    return max(
        (
            sum(gather.start_s < span.end_s and _later(gather, span, forward) for gather in gathers)
            for span in _of(timeline, kind)
            if span.row != ROOT
        ),
        default=0,
    )


def _later(gather: Span, span: Span, forward: bool) -> bool:
    """Whether this unit computes after that one."""
    return gather.row > span.row if forward else gather.row < span.row


def _overlaps(timeline: UnitTimeline) -> bool:
    """Whether any all-gather ran while a unit computed."""
    computing = [
        span for kind in ("forward", "backward") for span in _of(timeline, kind) if span.row != ROOT
    ]
    return any(
        gather.start_s < span.end_s and span.start_s < gather.end_s
        for gather in _of(timeline, "gather")
        for span in computing
    )
