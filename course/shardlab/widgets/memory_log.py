"""A rank's log of live bytes, thinned for drawing: fewer points, but every peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardlab.run.live_memory import CATEGORIES, Phase, RankMemory

MAX_POINTS = 4000  # of one rank: seven per pixel of the plot, for zooming in
MAX_TOTAL_POINTS = 24_000  # of all ranks: this is what the browser gets


@dataclass(frozen=True)
class Log:
    """One rank's memory over time. ``bytes[:, i]`` is live from ``times_s[i]`` to the next.

    ``lanes``: the row of each phase, so that a nested phase is drawn below the outer one.
    """

    rank: int
    times_s: NDArray[np.float64]  # [P]
    bytes: NDArray[np.int64]  # [categories, P]
    entries: int  # of the log before thinning
    peak_bytes: int
    peak_s: float
    peak_phase: str
    phases: tuple[tuple[str, float, float], ...]  # name, start, end
    lanes: tuple[int, ...]
    category_peaks: tuple[int, ...]  # [categories]
    moments: tuple[tuple[str, tuple[int, ...]], ...]  # rows of the table: name, [categories]

    @cached_property
    def span_s(self) -> tuple[float, float]:
        """Start and end of the whole log."""
        times = [*self.times_s, *(edge for _, start, end in self.phases for edge in (start, end))]
        if not times:
            return 0.0, 0.001
        return min(times), max(*times, min(times) + 1e-6)

    @property
    def zero_s(self) -> float:
        """The time that is shown as 0: where the first phase begins, or the log without phases."""
        return min((start for _, start, _ in self.phases), default=self.span_s[0])

    @cached_property
    def view_s(self) -> tuple[float, float]:
        """The initial view: the phases and the peak, without the start-up before them."""
        start, end = self.span_s
        if not self.phases:
            return start, end
        first = min(self.peak_s, *(phase[1] for phase in self.phases))
        last = max(self.peak_s, *(phase[2] for phase in self.phases))
        margin = 0.06 * (last - first)
        return max(start, first - margin), min(end, last + margin)

    def at(self, at_s: float) -> list[int]:
        """[categories] live bytes at this time; 0 before the first entry."""
        index = int(np.searchsorted(self.times_s, at_s, side="right")) - 1
        return (
            [0] * len(self.bytes) if index < 0 else [int(count) for count in self.bytes[:, index]]
        )

    def for_browser(self) -> dict[str, Any]:
        """The data that memory_timeline.js reads."""
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
            "category_peaks": list(self.category_peaks),
            "span_s": list(self.span_s),
            "view_s": list(self.view_s),
            "zero_s": self.zero_s,
        }


def read_log(memory: RankMemory, rank: int, max_points: int = MAX_POINTS) -> Log:
    """The log of a rank, thinned to about ``max_points``."""
    times_s, live = _with_exact_moments(memory)
    phases = sorted(
        ((phase.name, _ns(phase.start_s), _ns(phase.end_s)) for phase in memory.phases),
        key=lambda phase: (phase[1], -phase[2]),
    )
    edges = [edge for _, start, end in phases for edge in (start, end)]
    seen = np.searchsorted(times_s, [*edges, _ns(memory.peak_s)], side="right") - 1
    kept = thin(live.sum(axis=0), max_points, [*seen, *live.argmax(axis=1)])
    last_ends = sorted({phase.name: phase for phase in memory.phases}.values(), key=_end)
    return Log(
        rank=rank,
        times_s=times_s[kept],
        bytes=live[:, kept],
        entries=len(memory.times_s),
        peak_bytes=memory.peak_bytes,
        peak_s=_ns(memory.peak_s),
        peak_phase=memory.peak_phase,
        phases=tuple(phases),
        lanes=lanes_of(phases),
        category_peaks=_row(memory.peaks),
        moments=(
            ("at the peak", _row(memory.at_peak)),
            *((f"after {phase.name}", _row(phase.at_end)) for phase in last_ends),
            ("at the end", _row(memory.at("end"))),
        ),
    )


def _with_exact_moments(memory: RankMemory) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The log's times [P] and bytes [categories, P], with the exact peak and phase ends added.

    The log of a long run keeps only some entries, so these may be missing from it.
    """
    exact = [(memory.peak_s, memory.at_peak)]
    exact += [(phase.end_s, phase.at_end) for phase in memory.phases]
    times_s = np.concatenate([memory.times_s, [at_s for at_s, _ in exact]])
    live = np.concatenate(
        [
            np.array([memory.live_bytes[name] for name in CATEGORIES]),
            np.array([_row(counts) for _, counts in exact]).T,
        ],
        axis=1,
    )
    order = np.argsort(times_s, kind="stable")  # exact entries after others of the same time
    return np.round(times_s[order], 9), live[:, order]


def _row(counts: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(int(counts[name]) for name in CATEGORIES)


def _end(phase: Phase) -> float:
    return phase.end_s


def _ns(seconds: float) -> float:
    """Rounded to the nanosecond, as the browser gets it, so that comparisons agree."""
    return round(float(seconds), 9)


def thin(totals: NDArray[np.int64], max_points: int, keep: Sequence[int] = ()) -> NDArray[np.int64]:
    """Indices of about ``max_points`` of the points [T], in order, including ``keep``.

    Each group of neighbors keeps its highest, lowest and last point: no peak is lost, and the
    value after each group is exact.
    """
    count = len(totals)
    if count <= max_points:
        return np.arange(count)
    bounds = np.linspace(0, count, max(1, max_points // 3) + 1).astype(int)
    kept = {0, int(totals.argmax()), *(int(index) for index in keep if index >= 0)}
    for start, stop in pairwise(bounds):
        part = totals[start:stop]
        kept |= {int(start + part.argmax()), int(start + part.argmin()), int(stop) - 1}
    return np.array(sorted(kept))


def lanes_of(phases: Sequence[tuple[str, float, float]]) -> tuple[int, ...]:
    """The first free row for each phase (sorted by start, longer ones first)."""
    free_at: list[float] = []
    lanes = []
    for _, start, end in phases:
        lane = next((i for i, at in enumerate(free_at) if at <= start), len(free_at))
        free_at[lane : lane + 1] = [end]
        lanes.append(lane)
    return tuple(lanes)
