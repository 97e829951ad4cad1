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
    words: str
    color: str
    hatch: bool


LOOKS = {
    "compute": Look("computing", STATES["compute"], False),
    "overlapped": Look("computing and communicating", STATES["compute"], True),
    "exposed": Look("exposed communication", STATES["exposed"], False),
    "waiting": Look("waiting", WAIT, False),
    "loader": Look("loading data", STATES["loader"], False),
    "other": Look("nothing recorded", "none", False),
}
SOURCES = {"records": "by records of calls", "profiler": "by torch.profiler"}


@dataclass
class StateLane:
    """One lane for each rank."""

    by: str  # "records", "profiler"
    states: Sequence[list[State]]  # by rank
    path: Sequence[State]
    never_went_on: Mapping[int, Call]  # by rank: the call that it stood still for at the end

    @classmethod
    def of(cls, run: Run, by: str) -> StateLane:
        states = run.states(by=by)
        open_calls = (call for call in run.calls if call.end_s is None)
        stuck = {call.rank: call for call in open_calls if call.wait_start_s is not None}
        return cls(by, states, path_through(run, states, by), stuck if by == "records" else {})

    def shown(self, end_s: float) -> Iterator[list[State]]:
        """By rank. One that never went on waits until ``end_s``, the right edge of the picture."""
        for rank, own in enumerate(self.states):
            if (call := self.never_went_on.get(rank)) is None or call.wait_start_s is None:
                yield own
            else:
                began_s = max(call.start_s, call.wait_start_s)
                before = [state for state in own if state.start_s < began_s]
                yield [*before, State(rank, "waiting", began_s, end_s, call)]

    @property
    def source(self) -> str:
        """ "states by torch.profiler" """
        return f"states {SOURCES[self.by]}"

    def drawn(self) -> Iterator[tuple[str, Look]]:
        """The states that occur and have a color."""
        occurring = {state.name for own in self.states for state in own}
        for name, look in LOOKS.items():
            if name in occurring and look.color != "none":
                yield name, look

    def for_browser(self, names: Sequence[str], end_s: float) -> dict[str, Any]:
        """``names``: of the ranks. ``end_s``: of the picture."""
        return {
            "looks": [[look.words, look.color, look.hatch] for look in LOOKS.values()],
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
        for _, look in self.drawn():
            box = Rect(x=left, y=y, width=10, height=10, radius=2)
            marks.append(replace(box, fill=look.color, hatch=look.hatch))
            marks.append(Text(x=left + 15, y=y + 9, text=look.words, size=11, fill="muted"))
            left += 30 + text_width(look.words, 11)
        return marks

    def marks(
        self, x: Callable[[float], float], top: Sequence[float], height: float, end_s: float
    ) -> list[Mark]:
        """The lanes of the static picture, which ends at ``end_s``: one path for each state."""
        parts: dict[str, list[str]] = defaultdict(list)
        for own, y in zip(self.shown(end_s), top, strict=True):
            for left, right, name in merged((x(s.start_s), x(s.end_s), s.name) for s in own):
                across = right - left
                parts[name].append(f"M{left:.1f} {y:.1f}h{across:.1f}v{height:.1f}h{-across:.1f}z")
        return [
            Path(d="".join(parts[name]), fill=look.color, hatch=look.hatch)
            for name, look in self.drawn()
            if name in parts
        ]

    # ---- in words ----

    def rank_words(self, names: Sequence[str]) -> str:
        """ "rank 0: computing 61 %, exposed communication 39 %; rank 1: …" """
        ranks = [
            f"{name}: {_shares(own)}"
            for name, own in zip(names[:NAMED_RANKS], self.states, strict=False)
        ]
        return f"{self.source[0].upper()}{self.source[1:]}: {'; '.join(ranks)}"

    def path_words(self, names: Sequence[str]) -> str:
        """The longest parts of the critical path, and how often it changes its rank."""
        if not self.path:
            return "No critical path: nothing is recorded"
        seconds: dict[tuple[int, str], float] = defaultdict(float)
        for state in self.path:
            seconds[state.rank, state.name] += state.end_s - state.start_s
        longest = sorted(seconds, key=lambda part: -seconds[part])
        parts = [
            f"{names[rank]} {LOOKS[name].words} {format_seconds(seconds[rank, name])}"
            for rank, name in longest[:NAMED_PARTS]
        ]
        if rest := sum(seconds[part] for part in longest[NAMED_PARTS:]):
            parts.append(f"other parts {format_seconds(rest)}")
        whole = format_seconds(sum(seconds.values()))
        changes = len(hops(self.path))
        times = {0: "on one rank", 1: "changes rank once"}
        how = times.get(changes, f"changes rank {changes} times")
        return f"Critical path of {whole}, {how}: {', '.join(parts)}"


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
        f"{look.words} {part / time.total_s:.0%}".replace("%", " %")
        for name, look in LOOKS.items()
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
