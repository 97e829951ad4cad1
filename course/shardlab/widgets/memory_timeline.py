"""The memory timeline: a rank's live bytes over time, stacked by category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import traitlets

from shardlab.display.palette import MEMORY, PREDICTED
from shardlab.run import Run
from shardlab.run.live_memory import CATEGORIES
from shardlab.widgets.memory_log import MAX_POINTS, MAX_TOTAL_POINTS, Log, read_log, thin
from shardlab.widgets.picture import Picture, module
from shardlab.widgets.prediction import Prediction, guess_in
from shardlab.widgets.scene import Mark, Path, Rect, Text, as_json, line, text_width, to_svg
from shardlab.widgets.time_axis import tick_labels, time_ticks
from shardlab.widgets.traffic_map import byte_ticks
from shardlab.widgets.units import exact_bytes, format_bytes, format_seconds

WIDTH = 800.0
LEFT = 66.0  # of the plot; byte labels are to the left
RIGHT = 554.0
PLOT_HEIGHT = 270.0
LANE = 17.0  # height of a row of phases above the plot
MAX_LANES = 4
STATIC_POINTS = 1200  # two per pixel of the plot


class MemoryTimeline(Picture):
    """Live bytes over time. Made by `memory_timeline`.

    ``rank`` and ``shown``, the name of a run, choose what is drawn; they may be set.
    """

    _esm: ClassVar[str] = module(
        "time_axis.js", "memory_timeline_log.js", "memory_timeline_drawing.js", "memory_timeline.js"
    )
    rank = traitlets.Int(0).tag(sync=True)
    shown = traitlets.Unicode("").tag(sync=True)

    def __init__(
        self, logs: dict[str, list[Log]], rank: int, predicted: Mapping[str, float]
    ) -> None:
        self._logs = logs
        self._layout = layout = MemoryTimelineLayout(logs, predicted)
        scene = {
            "width": WIDTH,
            "height": layout.height,
            "plot": {"left": LEFT, "right": RIGHT, "top": layout.top, "bottom": layout.bottom},
            "lane": LANE,
            "lanes": layout.lanes,
            "max_bytes": layout.max_bytes,
            "categories": [[name, MEMORY[name]] for name in CATEGORIES],
            "predicted": dict(predicted),
            "predicted_color": PREDICTED,
            "background": as_json(layout.background()),
            "lines": as_json(layout.lines()),
            "runs": [
                {"name": name, "ranks": [log.for_browser() for log in ranks]}
                for name, ranks in logs.items()
            ],
        }
        super().__init__(scene=scene, rank=rank, shown=next(iter(logs)))

    @property
    def log(self) -> Log:
        """The log that is drawn."""
        return self._logs[self.shown][self.rank]

    def _other_peaks(self) -> dict[str, float]:
        """The same rank's peak in the other runs."""
        return {
            name: ranks[self.rank].peak_bytes
            for name, ranks in self._logs.items()
            if name != self.shown
        }

    @traitlets.validate("shown", "rank")
    def _validate(self, proposal: dict[str, Any]) -> Any:
        value = proposal["value"]
        if proposal["trait"].name == "shown" and value not in self._logs:
            raise traitlets.TraitError(f"shown must be one of {list(self._logs)}")
        ranks = min(map(len, self._logs.values()))
        if proposal["trait"].name == "rank" and not 0 <= value < ranks:
            raise traitlets.TraitError(f"rank must be from 0 to {ranks - 1}")
        return value

    def static_svg(self) -> str:
        layout, log = self._layout, self.log
        name = f" · {self.shown}" if self.shown else ""
        return to_svg(
            [
                *layout.bands(log),
                *layout.background(),
                *layout.areas(log),
                *layout.phases(log),
                *layout.axis(log),
                *layout.lines(),
                *layout.other_peaks(self._other_peaks(), log),
                *layout.peak(log),
                *layout.panel(log),
            ],
            WIDTH,
            layout.height,
            title=f"Live memory by category{name}",
            subtitle=f"rank {log.rank}",
            footer=self.summary(),
        )

    def summary(self) -> str:
        log = self.log
        if not log.peak_bytes:
            return f"rank {log.rank}: no tensors recorded"
        phase = f" in {log.peak_phase}" if log.peak_phase else ""
        return (
            f"rank {log.rank}: peak {exact_bytes(log.peak_bytes)} "
            f"at {format_seconds(log.peak_s - log.zero_s)}{phase}"
        )


def memory_timeline(
    run: Run | Mapping[str, Run],
    rank: int = 0,
    predicted: float | Mapping[str, float] | Prediction | None = None,
) -> MemoryTimeline:
    """Draw the live bytes of each rank over time by category, with phases named along the top.

    run: a run with ``memory=True``, or several by name to choose from, on the same scale; the peaks
        of the others are dotted lines.
    predicted: bytes to draw as dashed lines: one number for the peak, or ``{"name": bytes}``. Lines
        with a category's name are stacked in the order of the areas and listed next to the measured
        bytes in the legend.

    Raises ValueError for a rank that did not run, or a prediction that is not a number of bytes.
    """
    runs = dict(run) if isinstance(run, Mapping) else {"": run}
    if not runs:
        raise ValueError("no run to draw")
    ranks = min(each.world_size for each in runs.values())
    if not 0 <= rank < ranks:
        raise ValueError(f"rank={rank}: must be from 0 to {ranks - 1}")
    bytes_by_name = _prediction(guess_in(predicted))
    total_ranks = sum(each.world_size for each in runs.values())
    max_points = max(300, min(MAX_POINTS, MAX_TOTAL_POINTS // total_ranks))
    logs = {
        name: [read_log(each.memory[r], r, max_points) for r in range(each.world_size)]
        for name, each in runs.items()
    }
    return MemoryTimeline(logs, rank, bytes_by_name)


def _prediction(predicted: float | Mapping[str, float] | None) -> dict[str, float]:
    if predicted is None:
        return {}
    given = predicted if isinstance(predicted, Mapping) else {"peak": predicted}
    bytes_by_name = {name: float(count) for name, count in given.items()}
    for name, count in bytes_by_name.items():
        if not (np.isfinite(count) and count >= 0):
            raise ValueError(f"predicted[{name!r}] = {count} is not a number of bytes")
    return bytes_by_name


class MemoryTimelineLayout:
    """Positions of all marks. Ranks and runs share one scale of bytes; each has its own times."""

    def __init__(self, logs: Mapping[str, Sequence[Log]], predicted: Mapping[str, float]) -> None:
        every = [log for ranks in logs.values() for log in ranks]
        self.predicted = predicted
        self.levels = _levels(predicted)
        highest = max([1.0, *(log.peak_bytes for log in every), *self.levels.values()])
        self.max_bytes = 1.13 * highest  # room for the peak's label above it
        self.lanes = min(MAX_LANES, max([0, *(lane + 1 for log in every for lane in log.lanes)]))
        self.top = 8 + LANE * self.lanes
        self.bottom = self.top + PLOT_HEIGHT
        self.height = self.bottom + 24

    def y(self, count: float) -> float:
        return self.bottom - count / self.max_bytes * (self.bottom - self.top)

    def background(self) -> list[Mark]:
        """The byte axis and the frame."""
        marks: list[Mark] = []
        for tick in byte_ticks(self.max_bytes, 6):
            y = self.y(tick)
            marks.append(line(LEFT - 4, y, RIGHT, y, opacity=0.6))
            label = format_bytes(tick) if tick else "0"
            marks.append(Text(x=LEFT - 8, y=y + 4, text=label, size=11, anchor="end", fill="muted"))
        frame = Rect(x=LEFT, y=self.top, width=RIGHT - LEFT, height=PLOT_HEIGHT, stroke="rule")
        return [*marks, frame]

    def lines(self) -> list[Mark]:
        """The predictions, dashed. A name that would overlap another one is omitted."""
        marks: list[Mark] = []
        taken: list[float] = []
        for name, count in sorted(self.levels.items(), key=lambda entry: -entry[1]):
            y = self.y(count)
            marks.append(_horizontal(y))
            if all(abs(y - other) >= 14 for other in taken):
                text = f"predicted {name} {format_bytes(self.predicted[name])}"
                width = text_width(text, 11)
                backdrop = Rect(
                    x=LEFT + 6, y=y - 16, width=width + 8, height=14, fill="surface", opacity=0.8
                )
                marks += [backdrop, Text(x=LEFT + 10, y=y - 5, text=text, size=11)]
                taken.append(y)
        return marks

    def other_peaks(self, peaks: Mapping[str, float], log: Log) -> list[Mark]:
        """Peaks of other runs: dotted, named on the right, or on the left if this run's peak is on
        the right and no predictions are named there. Lines close together share a label."""
        at_left = not self.predicted and self.x(log, log.peak_s) > (LEFT + RIGHT) / 2
        marks: list[Mark] = []
        groups: list[list[tuple[str, float]]] = []
        for name, count in sorted(peaks.items(), key=lambda entry: -entry[1]):
            d = f"M{LEFT} {self.y(count):.2f}H{RIGHT}"
            marks.append(Path(d=d, stroke="muted", stroke_width=1.5, dash="1 4"))
            if groups and self.y(count) - self.y(groups[-1][0][1]) < 14:
                groups[-1].append((name, count))
            else:
                groups.append([(name, count)])
        for group in groups:
            y = self.y(group[0][1])
            peak_list = ", ".join(f"{name} {format_bytes(count)}" for name, count in group)
            text = f"peak{'s' * (len(group) > 1)}: {peak_list}"
            width = text_width(text, 11) + 6
            left = LEFT + 2 if at_left else RIGHT - 2 - width
            marks.append(
                Rect(x=left, y=y - 16, width=width, height=14, fill="surface", opacity=0.8)
            )
            marks.append(
                Text(x=LEFT + 6, y=y - 5, text=text, size=11)
                if at_left
                else Text(x=RIGHT - 6, y=y - 5, text=text, size=11, anchor="end")
            )
        return marks

    # ---- depends on the rank and its times; memory_timeline.js draws the same ----

    def x(self, log: Log, at_s: float) -> float:
        start, end = log.view_s
        share = (at_s - start) / (end - start)
        return LEFT + min(max(share, 0.0), 1.0) * (RIGHT - LEFT)

    def areas(self, log: Log) -> list[Mark]:
        """Each category from the bottom up to its upper edge, the lower ones drawn on top."""
        start, end = log.view_s
        first = max(0, int(np.searchsorted(log.times_s, start, side="right")) - 1)
        seen = slice(first, int(np.searchsorted(log.times_s, end, side="right")))
        times_s, stacked = log.times_s[seen], log.bytes[:, seen].cumsum(axis=0)
        if not len(times_s):
            return []
        at = thin(stacked[-1], STATIC_POINTS)
        times_s, stacked = times_s[at], stacked[:, at]
        marks: list[Mark] = []
        floor = f"{self.bottom:.1f}"
        for row in reversed(range(len(CATEGORIES))):
            if not log.category_peaks[row]:
                continue
            steps = "".join(
                f"H{self.x(log, time):.1f}V{self.y(count):.1f}"
                for time, count in zip(times_s, stacked[row], strict=True)
            )
            end_x = self.x(log, log.span_s[1])
            d = f"M{self.x(log, times_s[0]):.1f} {floor}{steps}H{end_x:.1f}V{floor}Z"
            marks.append(Path(d=d, fill=MEMORY[CATEGORIES[row]]))
        return marks

    def bands(self, log: Log) -> list[Mark]:
        """Phases as shading behind the areas."""
        return [
            Rect(
                x=self.x(log, start),
                y=self.top,
                width=self.x(log, end) - self.x(log, start),
                height=PLOT_HEIGHT,
                fill="text",
                opacity=0.05,
            )
            for _, start, end in log.phases
        ]

    def phases(self, log: Log) -> list[Mark]:
        """A bar and a name above the plot for each phase, and thin lines at its bounds."""
        marks: list[Mark] = []
        bounds: list[str] = []
        free = [0.0] * self.lanes
        for (name, start, end), lane in zip(log.phases, log.lanes, strict=True):
            if lane >= self.lanes:
                continue
            left, right = self.x(log, start), self.x(log, end)
            y, width = 4 + LANE * lane, max(1.0, right - left - 1)
            bounds += [f"M{x:.1f} {self.top:.1f}V{self.bottom:.1f}" for x in (left, right)]
            marks.append(Rect(x=left, y=y + 13, width=width, height=3, fill="muted", opacity=0.6))
            # A name may extend past its bar; the next one then starts further right, if it fits.
            at, wide = max(left, free[lane]), text_width(name, 11) + 5
            if at == left or at + wide <= right:
                marks.append(Text(x=at, y=y + 10, text=name, size=11, fill="muted"))
                free[lane] = at + wide
        return [*marks, Path(d="".join(bounds), stroke="text", opacity=0.35, dash="2 3")]

    def axis(self, log: Log) -> list[Mark]:
        marks: list[Mark] = []
        start, end = (edge - log.zero_s for edge in log.view_s)
        ticks = time_ticks(start, end, 6)
        for tick, label in zip(ticks, tick_labels(ticks, end), strict=True):
            x = self.x(log, tick + log.zero_s)
            marks.append(line(x, self.bottom, x, self.bottom + 4))
            marks.append(
                Text(x=x, y=self.bottom + 16, text=label, size=11, anchor="middle", fill="muted")
            )
        return marks

    def peak(self, log: Log) -> list[Mark]:
        """A ring around the peak, with its bytes above."""
        if not log.peak_bytes:
            return []
        x, y = self.x(log, log.peak_s), self.y(log.peak_bytes)
        text = f"peak {format_bytes(log.peak_bytes)}"
        half = text_width(text, 12) / 2
        at = min(max(x, LEFT + half + 4), RIGHT - half - 4)
        ring = Rect(
            x=x - 4, y=y - 4, width=8, height=8, radius=4, fill="surface", stroke="text",
            stroke_width=2,
        )  # fmt: skip
        return [ring, Text(x=at, y=y - 10, text=text, size=12, anchor="middle", weight=600)]

    def panel(self, log: Log) -> list[Mark]:
        """The legend, with the bytes of each category at the peak."""
        x, y = RIGHT + 16, self.top + 12
        measured_x, predicted_x = WIDTH - (76 if self._by_category else 4), WIDTH - 4
        at = log.at(log.peak_s)
        marks: list[Mark] = [Text(x=x, y=y, text="at the peak", size=12, weight=600)]
        if self._by_category:
            marks.append(
                Text(x=predicted_x, y=y, text="predicted", size=11, anchor="end", fill="muted")
            )
        for line_number, row in enumerate(reversed(range(len(CATEGORIES))), 1):
            name = CATEGORIES[row]
            below = y + 22 * line_number
            marks += [
                Rect(x=x, y=below - 10, width=11, height=11, fill=MEMORY[name], radius=2),
                Text(x=x + 17, y=below, text=name),
                Text(x=measured_x, y=below, text=format_bytes(at[row]), anchor="end"),
            ]
            if name in self.predicted:
                text = format_bytes(self.predicted[name])
                box = text_width(text, 12)
                marks.append(Text(x=predicted_x, y=below, text=text, anchor="end"))
                marks.append(
                    Rect(x=predicted_x - box, y=below + 3, width=box, height=2, fill=PREDICTED)
                )
        below = y + 22 * len(CATEGORIES) + 8
        marks += [
            line(x, below, WIDTH - 4, below),
            Text(x=x + 17, y=below + 18, text="total", weight=600),
            Text(
                x=measured_x, y=below + 18, text=format_bytes(sum(at)), anchor="end", weight=600
            ),
        ]  # fmt: skip
        return marks

    @property
    def _by_category(self) -> bool:
        return any(name in CATEGORIES for name in self.predicted)


def _levels(predicted: Mapping[str, float]) -> dict[str, float]:
    """The height of each predicted line: categories are stacked, others start at 0."""
    levels = {name: count for name, count in predicted.items() if name not in CATEGORIES}
    below = 0.0
    for name in CATEGORIES:
        if name in predicted:
            below += predicted[name]
            levels[name] = below
    return levels


def _horizontal(y: float) -> Path:
    return Path(d=f"M{LEFT} {y:.2f}H{RIGHT}", stroke=PREDICTED, stroke_width=2, dash="6 4")
