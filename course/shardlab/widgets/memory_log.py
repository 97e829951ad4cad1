"""A rank's log of live bytes as a picture needs it: few points, with every peak among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardlab.live_memory import CATEGORIES, Phase, RankMemory

MOST_POINTS = 4000  # of one rank: seven for each pixel of the plot, for zooming in
MOST_IN_ALL = 24_000  # of all ranks together: what is sent to the browser


@dataclass(frozen=True)
class Log:
    """One rank's memory over time. ``bytes[:, i]`` is live from ``times_s[i]`` to the next.

    ``lanes`` has a row for each phase, so that one within another stands below it.
    """

    rank: int
    times_s: NDArray[np.float64]  # [P]
    bytes: NDArray[np.int64]  # [categories, P]
    entries: int  # of the log, before it was thinned
    peak_bytes: int
    peak_s: float
    peak_phase: str
    phases: tuple[tuple[str, float, float], ...]  # name, start, end
    lanes: tuple[int, ...]
    highest: tuple[int, ...]  # [categories] the most of each at any time
    moments: tuple[tuple[str, tuple[int, ...]], ...]  # worth a row of a table: name, [categories]

    @cached_property
    def span_s(self) -> tuple[float, float]:
        """All of it."""
        times = [*self.times_s, *(edge for _, start, end in self.phases for edge in (start, end))]
        if not times:
            return 0.0, 0.001
        return min(times), max(*times, min(times) + 1e-6)

    @cached_property
    def view_s(self) -> tuple[float, float]:
        """What to show at first: the phases and the peak, without the start-up before them."""
        start, end = self.span_s
        if not self.phases:
            return start, end
        first = min(self.peak_s, *(phase[1] for phase in self.phases))
        last = max(self.peak_s, *(phase[2] for phase in self.phases))
        spare = 0.06 * (last - first)
        return max(start, first - spare), min(end, last + spare)

    def at(self, at_s: float) -> list[int]:
        """[categories] bytes that were live at this time; none before the first entry."""
        index = int(np.searchsorted(self.times_s, at_s, side="right")) - 1
        return (
            [0] * len(self.bytes) if index < 0 else [int(count) for count in self.bytes[:, index]]
        )

    def plain(self) -> dict[str, Any]:
        """As the browser reads it; see memory_timeline.js."""
        return {
            "rank": self.rank,
            "entries": self.entries,
            "times_s": [round(float(time), 9) for time in self.times_s],
            "bytes": self.bytes.tolist(),
            "peak_bytes": self.peak_bytes,
            "peak_s": self.peak_s,
            "peak_phase": self.peak_phase,
            "phases": [[*phase, lane] for phase, lane in zip(self.phases, self.lanes, strict=True)],
            "moments": [[name, list(counts)] for name, counts in self.moments],
            "highest": list(self.highest),
            "span_s": list(self.span_s),
            "view_s": list(self.view_s),
        }


def read_log(memory: RankMemory, rank: int, most: int = MOST_POINTS) -> Log:
    """``most``: about how many points to keep."""
    times_s, whole = _with_exact_moments(memory)
    phases = sorted(
        ((phase.name, _ns(phase.start_s), _ns(phase.end_s)) for phase in memory.phases),
        key=lambda phase: (phase[1], -phase[2]),
    )
    edges = [edge for _, start, end in phases for edge in (start, end)]
    seen = np.searchsorted(times_s, [*edges, _ns(memory.peak_s)], side="right") - 1
    kept = thin(whole.sum(axis=0), most, [*seen, *whole.argmax(axis=1)])
    last_ends = sorted({phase.name: phase for phase in memory.phases}.values(), key=_end)
    return Log(
        rank=rank,
        times_s=times_s[kept],
        bytes=whole[:, kept],
        entries=len(memory.times_s),
        peak_bytes=memory.peak_bytes,
        peak_s=_ns(memory.peak_s),
        peak_phase=memory.peak_phase,
        phases=tuple(phases),
        lanes=lanes_of(phases),
        highest=_row(memory.peaks),
        moments=(
            ("at the peak", _row(memory.at_peak)),
            *((f"after {phase.name}", _row(phase.at_end)) for phase in last_ends),
            ("at the end", _row(memory.at("end"))),
        ),
    )


def _with_exact_moments(memory: RankMemory) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The log [P] and [categories, P] with what is known exactly: the peak and ends of phases.

    A long run's log keeps some of its moments only, so these may be missing from it.
    """
    exact = [(memory.peak_s, memory.at_peak)]
    exact += [(phase.end_s, phase.at_end) for phase in memory.phases]
    times_s = np.concatenate([memory.times_s, [at_s for at_s, _ in exact]])
    whole = np.concatenate(
        [
            np.array([memory.live_bytes[name] for name in CATEGORIES]),
            np.array([_row(counts) for _, counts in exact]).T,
        ],
        axis=1,
    )
    order = np.argsort(times_s, kind="stable")  # the exact ones after others of the same time
    return np.round(times_s[order], 9), whole[:, order]


def _row(counts: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(int(counts[name]) for name in CATEGORIES)


def _end(phase: Phase) -> float:
    return phase.end_s


def _ns(seconds: float) -> float:
    """To the nanosecond, as the browser gets it: all comparisons use the same."""
    return round(float(seconds), 9)


def thin(totals: NDArray[np.int64], most: int, keep: Sequence[int] = ()) -> NDArray[np.int64]:
    """Indices of about ``most`` of the points [T], in order, ``keep`` among them.

    Of each run of neighbours the highest, the lowest and the last stay: no peak is lost, and after
    each run the picture is right again.
    """
    count = len(totals)
    if count <= most:
        return np.arange(count)
    bounds = np.linspace(0, count, max(1, most // 3) + 1).astype(int)
    kept = {0, int(totals.argmax()), *(int(index) for index in keep if index >= 0)}
    for start, stop in pairwise(bounds):
        part = totals[start:stop]
        kept |= {int(start + part.argmax()), int(start + part.argmin()), int(stop) - 1}
    return np.array(sorted(kept))


def lanes_of(phases: Sequence[tuple[str, float, float]]) -> tuple[int, ...]:
    """A row for each phase (sorted by start, longer ones first): the first that is free."""
    free_at: list[float] = []
    lanes = []
    for _, start, end in phases:
        lane = next((i for i, at in enumerate(free_at) if at <= start), len(free_at))
        free_at[lane : lane + 1] = [end]
        lanes.append(lane)
    return tuple(lanes)
