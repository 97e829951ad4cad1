"""The timeline: each rank's calls as bars; in a hang, arrows show which rank waits for which.

A bar is pale until all ranks that take part in its call have begun it. A message cannot move bytes
before that; some collectives move bytes between the ranks that have already entered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from shardlab.display.palette import ERROR, ink_on, op_color
from shardlab.errors import LaunchError
from shardlab.run import Call, MeasuredBlock, Run, Span
from shardlab.run.matching import match_calls
from shardlab.run.states import best_source
from shardlab.widgets import passes
from shardlab.widgets.node_borders import rank_name
from shardlab.widgets.picture import NAMED_RANKS, Picture, module
from shardlab.widgets.scene import Mark, as_json, to_svg
from shardlab.widgets.timeline_layout import WIDTH, TimelineLayout
from shardlab.widgets.timeline_states import StateLane
from shardlab.widgets.units import format_seconds
from shardlab.widgets.waiting import table_of, waits_of


class Timeline(Picture):
    """Calls by rank and time. Made by `timeline`."""

    _esm: ClassVar[str] = module(
        "time_axis.js",
        "timeline_calls.js",
        "timeline_states.js",
        "timeline_path.js",
        "timeline_drawing.js",
        "timeline.js",
    )

    def __init__(
        self,
        run: Run,
        error: LaunchError | None,
        label: str | None = None,
        by: str | None = None,
    ) -> None:
        run = from_zero(run)
        self._run, self._error, self._label = run, error, label
        shown = () if label is None else run.traffic[label].blocks  # raises for an unknown label
        self._calls = sorted(run.calls, key=lambda call: (call.rank, call.start_s))
        self._waits = waits_of(error, run.calls)
        matched_with = {call: group for group in match_calls(run.calls) for call in group.calls}
        by = by or best_source(run.recorded)
        self._lane = lane = None if by is None else StateLane.of(run, by, label)
        self._layout = layout = TimelineLayout(
            run, self._calls, matched_with, bool(self._waits), lane is not None, shown
        )
        index_of = {call: index for index, call in enumerate(self._calls)}
        self._background = layout.background(self._calls, self._states())
        if lane is not None:
            self._background += lane.legend(*layout.legend_of_states)
        self._arrows = layout.arrows(self._waits)
        scene = {
            "world_size": run.world_size,
            "nodes": layout.nodes,
            "width": WIDTH,
            "height": layout.height,
            "plot": layout.plot,
            "start_s": layout.start_s,
            "end_s": layout.end_s,
            "view": layout.view,
            "label": label,
            "lanes": layout.lanes,
            "row": layout.row,
            "margin": layout.margin,
            "state": layout.state,
            "state_height": layout.state_height,
            "states": None if lane is None else lane.for_browser(self._names(), layout.end_s),
            "error_color": ERROR,
            "headline": "" if error is None else error.headline,
            "ops": [[op, op_color(op), ink_on(op_color(op))] for op in self._ops()],
            "calls": [layout.for_browser(call, index_of) for call in self._calls],
            "blocks": [
                [b.rank, b.label, b.start_s, b.end_s, which]
                for b, which in passes.numbered(run.traffic.blocks)
            ],
            "waits": [[wait.waiter, wait.awaited, wait.in_cycle] for wait in self._waits],
            "background": as_json(self._background),
            "arrows": as_json(self._arrows),
        }
        super().__init__(scene=scene)

    def static_svg(self) -> str:
        layout = self._layout
        marks = [
            *layout.bands(self._run.traffic.blocks),
            *self._background,
            *layout.axis(),
            *self._state_marks(),
            *layout.bars(self._calls),
            *self._arrows,
        ]
        return to_svg(
            marks,
            WIDTH,
            layout.height,
            title=self.scene["headline"] or "Calls by rank",
            subtitle="" if self._error else self.summary(),
            footer=self.summary() if self._error else "",
        )

    def _state_marks(self) -> list[Mark]:
        layout = self._layout
        if self._lane is None:
            return []
        tops = [layout.top_of_states(rank) for rank in range(self._run.world_size)]
        return self._lane.marks(layout.x, tops, layout.state_height, layout.view)

    def _names(self) -> list[str]:
        return [rank_name(self._layout.nodes, rank) for rank in range(self._run.world_size)]

    def summary(self) -> str:
        pending = sum(call.end_s is None for call in self._calls)
        text = f"{len(self._calls)} calls on {self._run.world_size} ranks"
        parts = [text] + [f"{pending} never ended"] * bool(pending)
        parts += [] if self._lane is None else [self._lane.source]
        return ", ".join(parts + ([] if self._label is None else [f"shown: {self._label}"]))

    def alternative(self) -> str:
        nodes = self._layout.nodes
        ranks = []
        for rank in range(min(self._run.world_size, NAMED_RANKS)):
            calls = [call for call in self._calls if call.rank == rank]
            ranks.append(f"{rank_name(nodes, rank)}: {_in_words(calls)}")
        waits = [
            f"{rank_name(nodes, wait.waiter)} waits for {rank_name(nodes, wait.awaited)}"
            for wait in self._waits
        ]
        states = []
        if self._lane is not None:
            states = [self._lane.rank_words(self._names()), self._lane.path_words(self._names())]
        return ". ".join([self.summary(), *ranks, *waits[:16], *states])

    def _ops(self) -> list[str]:
        return list(dict.fromkeys(call.op for call in self._calls))

    def _states(self) -> dict[int, str]:
        """What ranks without a pending call were doing when everything stopped."""
        return {row.rank: row.state for row in table_of(self._error) if row.state != "waiting"}


def timeline(
    run_or_error: Run | LaunchError, label: str | None = None, by: str | None = None
) -> Timeline:
    """Draw when each rank was in which call, and what it was doing.

    Above its calls, a rank of a profiled run (`with profile():`), or of one with blocks of
    `measure("loader")`, has a lane of its states: computing, overlapped or exposed communication,
    waiting, loading. A button shows the critical path.

    label: the view starts at the passes of ``with measure(label):``; zooming out shows all. Shares
        and the critical path are those of `Run.step_time` and `critical_path` with this label.
    by: "records" or "profiler", as for `Run.step_time`: draws the lane from this, in any run.

    Given the error of a run that hung (``DeadlockError``, ``RunTimeout``), calls that never ended
    are hatched, and arrows lead from each waiting rank to those it waits for.

    Raises ValueError for an error from before the run started, and if ``by`` has recorded nothing;
    KeyError for a label that was not measured.
    """
    if not isinstance(run_or_error, LaunchError):
        return Timeline(run_or_error, None, label, by)
    if run_or_error.run is None:
        raise ValueError("this error has no run: no rank started, so there are no calls to draw")
    return Timeline(run_or_error.run, run_or_error, label, by)


def from_zero(run: Run) -> Run:
    """The run with times counted from the first that is recorded."""
    blocks, links, spans = run.traffic.blocks, run.traffic.links, run.spans
    recorded: list[Call | MeasuredBlock | Span] = [*run.calls, *blocks, *spans]
    first_s = min((each.start_s for each in recorded), default=0.0)

    def moved(each: Any) -> Any:
        ends_s = {"end_s": None if each.end_s is None else each.end_s - first_s}
        if getattr(each, "wait_start_s", None) is not None:
            ends_s["wait_start_s"] = each.wait_start_s - first_s
        return replace(each, start_s=each.start_s - first_s, **ends_s)

    return replace(
        run,
        calls=[moved(call) for call in run.calls],
        spans=[  # there may be 100,000, for which `replace` is slow
            Span(s.rank, s.name, s.kind, s.start_s - first_s, s.end_s - first_s) for s in spans
        ],
        traffic=replace(
            run.traffic,
            blocks=tuple(moved(block) for block in blocks),
            links=links and replace(links, time_s=links.time_s - first_s),
        ),
    )


def _in_words(calls: Sequence[Call]) -> str:
    """The first calls of a rank with their times."""
    words = [
        f"{call.op}, which never ended"
        if call.end_s is None
        else f"{call.op} {format_seconds(call.end_s - call.start_s)}"
        for call in calls[:4]
    ]
    more = [f"{len(calls) - 4} more calls"] if len(calls) > 4 else []
    return ", ".join(words + more) or "no calls"
