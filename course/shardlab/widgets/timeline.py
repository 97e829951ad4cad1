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
from shardlab.run import Call, Run
from shardlab.run.matching import match_calls
from shardlab.widgets import passes
from shardlab.widgets.node_borders import rank_name
from shardlab.widgets.picture import NAMED_RANKS, Picture, module
from shardlab.widgets.scene import as_json, to_svg
from shardlab.widgets.timeline_layout import WIDTH, TimelineLayout
from shardlab.widgets.units import format_seconds
from shardlab.widgets.waiting import table_of, waits_of


class Timeline(Picture):
    """Calls by rank and time. Made by `timeline`."""

    _esm: ClassVar[str] = module(
        "time_axis.js", "timeline_calls.js", "timeline_drawing.js", "timeline.js"
    )

    def __init__(self, run: Run, error: LaunchError | None) -> None:
        run = from_zero(run)
        self._run, self._error = run, error
        self._calls = sorted(run.calls, key=lambda call: (call.rank, call.start_s))
        self._waits = waits_of(error, run.calls)
        matched_with = {call: group for group in match_calls(run.calls) for call in group.calls}
        self._layout = layout = TimelineLayout(run, self._calls, matched_with, bool(self._waits))
        index_of = {call: index for index, call in enumerate(self._calls)}
        self._background = layout.background(self._calls, self._states())
        self._arrows = layout.arrows(self._waits)
        scene = {
            "world_size": run.world_size,
            "nodes": layout.nodes,
            "width": WIDTH,
            "height": layout.height,
            "plot": layout.plot,
            "start_s": layout.start_s,
            "end_s": layout.end_s,
            "lanes": layout.lanes,
            "row": layout.row,
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

    def summary(self) -> str:
        pending = sum(call.end_s is None for call in self._calls)
        text = f"{len(self._calls)} calls on {self._run.world_size} ranks"
        return f"{text}, {pending} never ended" if pending else text

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
        return ". ".join([self.summary(), *ranks, *waits[:16]])

    def _ops(self) -> list[str]:
        return list(dict.fromkeys(call.op for call in self._calls))

    def _states(self) -> dict[int, str]:
        """What ranks without a pending call were doing when everything stopped."""
        return {row.rank: row.state for row in table_of(self._error) if row.state != "waiting"}


def timeline(run_or_error: Run | LaunchError) -> Timeline:
    """Draw when each rank was in which call.

    Given the error of a run that hung (``DeadlockError``, ``RunTimeout``), calls that never ended
    are hatched, and arrows lead from each waiting rank to those it waits for.

    Raises ValueError for an error from before the run started.
    """
    if not isinstance(run_or_error, LaunchError):
        return Timeline(run_or_error, None)
    if run_or_error.run is None:
        raise ValueError("this error has no run: no rank started, so there are no calls to draw")
    return Timeline(run_or_error.run, run_or_error)


def from_zero(run: Run) -> Run:
    """The run with times counted from its first call or measured block."""
    blocks, links = run.traffic.blocks, run.traffic.links
    first_s = min([*(c.start_s for c in run.calls), *(b.start_s for b in blocks)], default=0.0)

    def moved(at_s: float | None) -> Any:
        return None if at_s is None else at_s - first_s

    return replace(
        run,
        calls=[replace(c, start_s=moved(c.start_s), end_s=moved(c.end_s)) for c in run.calls],
        traffic=replace(
            run.traffic,
            blocks=tuple(
                replace(b, start_s=moved(b.start_s), end_s=moved(b.end_s)) for b in blocks
            ),
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
