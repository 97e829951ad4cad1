"""The timeline's lane of states: what each rank was doing, and the critical path.

Many states are narrower than a pixel: then the one that fills most of the pixel is drawn.
timeline_states.js does the same at each zoom.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from shardlab.display.palette import STATES, WAIT
from shardlab.run import Call, Run, State, StepTime
from shardlab.run.critical_path import hops, path_through
from shardlab.widgets.picture import NAMED_RANKS
from shardlab.widgets.scene import Mark, Path, Rect, Text, text_width
from shardlab.widgets.units import format_seconds

PIXEL = 1.0
TICK_S = 1e-7  # of the times for the browser
NAMED_PARTS = 4  # of the critical path, in words


class Look(NamedTuple):
    color: str
    hatch: bool
    meaning: str


LOOKS = {  # by the names of shardlab.run.State
    "compute": Look(STATES["compute"], False, "computes"),
    "overlapped": Look(STATES["compute"], True, "computes while communication is in progress"),
    "exposed": Look(STATES["exposed"], False, "stands still for communication in progress"),
    "waiting": Look(WAIT, False, "stands still in a call that another rank has not begun"),
    "loader": Look(STATES["loader"], False, "gets its next batch"),
    "other": Look("none", False, "nothing is recorded"),
}


@dataclass
class StateLane:
    """One lane for each rank."""

    source: str  # "states by torch.profiler"
    states: Sequence[list[State]]  # by rank
    summed: Sequence[list[State]]  # the same in the passes of the label, if there is one
    path: Sequence[State]
    never_went_on: Mapping[int, Call]  # by rank: the call that it stood still for at the end
    label: str | None = None

    @classmethod
    def of(cls, run: Run, by: str, label: str | None = None) -> StateLane:
        """``label``: sums and the critical path are of its passes."""
        states = run.states(by=by)
        summed = states if label is None else run.states(label, by)
        open_calls = (call for call in run.calls if call.end_s is None)
        stuck = {call.rank: call for call in open_calls if call.wait_start_s is not None}
        return cls(
            f"states by {run.spans_by if by == 'profiler' else 'records of calls'}",
            states,
            summed,
            path_through(run, summed, by),
            stuck if by == "records" else {},
            label,
        )

    def shown(self, end_s: float) -> Iterator[list[State]]:
        """By rank. One that never went on waits until ``end_s``, the right edge of the picture."""
        for rank, own in enumerate(self.states):
            if (call := self.never_went_on.get(rank)) is None or call.wait_start_s is None:
                yield own
            else:
                began_s = max(call.start_s, call.wait_start_s)
                before = [state for state in own if state.start_s < began_s]
                yield [*before, State(rank, "waiting", began_s, end_s, call)]

    def occurring(self) -> Iterator[tuple[str, Look]]:
        names = {state.name for own in self.states for state in own}
        return ((name, look) for name, look in LOOKS.items() if name in names)

    def for_browser(self, names: Sequence[str], end_s: float) -> dict[str, Any]:
        """``names``: of the ranks. ``end_s``: of the picture."""
        return {
            "looks": [[name, *look] for name, look in LOOKS.items()],
            "source": self.source,
            "ranks": [_packed(own) for own in self.shown(end_s)],
            "path": [[*stretch] for stretch in self.stretches()],
            "words": self.rank_words(names),
            "path_words": self.path_words(names),
        }

    def stretches(self) -> list[tuple[int, float, float]]:
        """(rank, start_s, end_s) of the critical path, one for each stay on a rank."""
        found: list[tuple[int, float, float]] = []
        for state in self.path:
            if found and (found[-1][0], found[-1][2]) == (state.rank, state.start_s):
                found[-1] = (state.rank, found[-1][1], state.end_s)
            else:
                found.append((state.rank, state.start_s, state.end_s))
        return found

    def legend(self, left: float, y: float) -> list[Mark]:
        marks: list[Mark] = []
        for name, look in self.occurring():
            box = Rect(x=left, y=y, width=10, height=10, radius=2)
            if look.color == "none":  # an empty lane
                marks.append(replace(box, stroke="muted"))
            else:
                marks.append(replace(box, fill=look.color, hatch=look.hatch))
            marks.append(Text(x=left + 15, y=y + 9, text=name, size=11, fill="muted"))
            left += 30 + text_width(name, 11)
        return marks

    def marks(
        self,
        x: Callable[[float], float],
        top: Sequence[float],
        height: float,
        view: tuple[float, float],
    ) -> list[Mark]:
        """The lanes of the static picture: one path for each state. view: what it shows, in s."""
        start_s, end_s = view
        parts: dict[str, list[str]] = defaultdict(list)
        for own, y in zip(self.shown(end_s), top, strict=True):
            seen = (s for s in own if s.end_s > start_s and s.start_s < end_s)
            for left, right, name in merged((x(s.start_s), x(s.end_s), s.name) for s in seen):
                across = right - left
                parts[name].append(f"M{left:.1f} {y:.1f}h{across:.1f}v{height:.1f}h{-across:.1f}z")
        return [
            Path(d="".join(parts[name]), fill=look.color, hatch=look.hatch)
            for name, look in self.occurring()
            if name in parts and look.color != "none"
        ]

    # ---- in words ----

    def rank_words(self, names: Sequence[str]) -> str:
        """ "States by torch.profiler: rank 0: compute 61 %, exposed 39 %; rank 1: …" """
        ranks = [
            f"{name}: {_shares(own)}"
            for name, own in zip(names[:NAMED_RANKS], self.summed, strict=False)
        ]
        within = "" if self.label is None else f" in {self.label}"
        return f"{self.source[0].upper()}{self.source[1:]}{within}: {'; '.join(ranks)}"

    def path_words(self, names: Sequence[str]) -> str:
        """The longest parts of the critical path, and how often it changes its rank."""
        if not self.path:
            return "No critical path: nothing is recorded"
        seconds: dict[tuple[int, str], float] = defaultdict(float)
        for state in self.path:
            seconds[state.rank, state.name] += state.end_s - state.start_s
        longest = sorted(seconds, key=lambda part: -seconds[part])
        parts = [
            f"{names[rank]} {name} {format_seconds(seconds[rank, name])}"
            for rank, name in longest[:NAMED_PARTS]
        ]
        if rest := sum(seconds[part] for part in longest[NAMED_PARTS:]):
            parts.append(f"other parts {format_seconds(rest)}")
        whole = format_seconds(sum(seconds.values()))
        changes = len(hops(self.path))
        times = {0: "on one rank", 1: "changes rank once"}
        how = times.get(changes, f"changes rank {changes} times")
        within = "" if self.label is None else f" in {self.label}"
        return f"Critical path of {whole}{within}, {how}: {', '.join(parts)}"


def merged(spans: Iterable[tuple[float, float, str]]) -> Iterator[tuple[float, float, str]]:
    """(left, right, state), by position, as they are drawn: spans that are narrower than a pixel
    become one for each pixel, and equal neighbors one."""
    last: tuple[float, float, str] | None = None
    for left, right, name in _by_pixel(spans):
        if last and last[2] == name and left - last[1] < 1e-9:
            last = (last[0], right, name)
            continue
        if last:
            yield last
        last = (left, right, name)
    if last:
        yield last


def _by_pixel(spans: Iterable[tuple[float, float, str]]) -> Iterator[tuple[float, float, str]]:
    shares: dict[str, float] = {}
    start = end = 0.0
    for left, right, name in spans:
        if shares and (right - left >= PIXEL or left // PIXEL != start // PIXEL):
            yield start, end, _largest(shares)
            shares = {}
        if right - left >= PIXEL:
            yield left, right, name
            continue
        if not shares:
            start = left
        end = right
        shares[name] = shares.get(name, 0.0) + right - left
    if shares:
        yield start, end, _largest(shares)


def _largest(shares: Mapping[str, float]) -> str:
    return max(shares, key=lambda name: shares[name])


def _shares(states: Iterable[State]) -> str:
    time = StepTime.of(states)
    if not time.total_s:
        return "nothing recorded"
    return ", ".join(
        f"{name} {part / time.total_s:.0%}".replace("%", " %")
        for name in LOOKS
        if (part := getattr(time, f"{name}_s")) >= 0.005 * time.total_s
    )


def _packed(states: Sequence[State]) -> list[Any]:
    """[first start in s, lengths in ticks, an index of LOOKS for each]; a rank's states adjoin."""
    if not states:
        return [0.0, [], ""]
    first_s = states[0].start_s
    edges = [round((state.end_s - first_s) / TICK_S) for state in states]
    lengths = [after - before for before, after in zip([0, *edges], edges, strict=False)]
    index_of = {name: str(index) for index, name in enumerate(LOOKS)}
    return [first_s, lengths, "".join(index_of[state.name] for state in states)]
