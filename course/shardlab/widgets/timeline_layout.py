"""Where the timeline's rows, bars and arrows are; timeline_drawing.js knows it, too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shardlab.display.palette import ERROR, WAIT, ink_on, op_color
from shardlab.run import Call, MeasuredBlock, Run, Span
from shardlab.run.lanes import free_lanes
from shardlab.run.matching import MatchedCalls
from shardlab.widgets import passes
from shardlab.widgets.node_borders import NAMES_WIDTH, row_borders, several
from shardlab.widgets.scene import Mark, Path, Rect, Text, line, text_width
from shardlab.widgets.time_axis import tick_labels, time_ticks
from shardlab.widgets.waiting import WaitEdge

WIDTH = 800.0
LEFT = 64.0  # of the plot; rank names are to the left
TOP = 26.0  # of the plot; names of measured blocks are above
SHADE = 0.1  # opacity of a measured block, in rows
AXIS = 48.0  # height below the plot: ticks and the legend
LEGEND = 18.0  # height of another line of the legend
MAX_STATE = 16.0  # height of the lane of states, in a row that has room for it
STATE_SHARE = 0.3  # of a row that is divided into many lanes
EDGE = 0.01  # room before and after the passes that are shown, of their time
ARROWS = 118.0  # width to the right of the plot for the arrows of a hang
MAX_LANES = 4
MAX_ARROWS = 256
MIN_WAITING = 0.75  # CSS pixels
WAITING = 0.35  # opacity of the part of a bar in which a call waits; timeline_drawing.js has it too


class TimelineLayout:
    """Positions of times and ranks. Concurrent calls of a rank are in separate lanes of its row."""

    def __init__(
        self,
        run: Run,
        calls: Sequence[Call],
        matched_with: Mapping[Call, MatchedCalls],
        with_arrows: bool,
        with_states: bool = False,
        shown: Sequence[MeasuredBlock] = (),
    ) -> None:
        n = run.world_size
        self.nodes = several(run.traffic.nodes)
        self.left = LEFT + (NAMES_WIDTH if self.nodes else 0)
        self.matched_with = matched_with
        self.lane_of, self.lanes = assign_lanes(calls)
        space = 20 if with_arrows else 8  # between two arrowheads, and between bars
        lanes, most = self.lanes + with_states, 40.0 + MAX_STATE * with_states
        self.row = max(9.0, min(14.0 * lanes + space, most, 560.0 / n))
        self.margin = 3.0 if self.row >= 16 else 1.0
        # The lane of states is above those of calls.
        inner = self.row - 2 * self.margin
        share = max(1 / lanes, STATE_SHARE)
        self.state = min(share * inner, MAX_STATE) if with_states else 0.0
        self.bottom = TOP + n * self.row
        self.right = WIDTH - (ARROWS if with_arrows else 28)
        self.height = self.bottom + AXIS + LEGEND * with_states
        self.start_s, self.end_s = _span(calls, [*run.traffic.blocks, *run.spans])
        self.view = (self.start_s, self.end_s)  # what the picture shows first
        if shown:
            from_s, to_s = min(b.start_s for b in shown), max(b.end_s for b in shown)
            edge_s = EDGE * (to_s - from_s)
            self.view = (max(self.start_s, from_s - edge_s), min(self.end_s, to_s + edge_s))

    @property
    def plot(self) -> dict[str, float]:
        return {"left": self.left, "right": self.right, "top": TOP, "bottom": self.bottom}

    def x(self, at_s: float) -> float:
        """Where a time is in the static picture: at the edge if the view does not contain it."""
        start_s, end_s = self.view
        share = min(max((at_s - start_s) / (end_s - start_s), 0.0), 1.0)
        return self.left + share * (self.right - self.left)

    def is_seen(self, each: Call | MeasuredBlock) -> bool:
        start_s, end_s = self.view
        return each.start_s <= end_s and (each.end_s is None or each.end_s >= start_s)

    def top_of_states(self, rank: int) -> float:
        return TOP + rank * self.row + self.margin

    @property
    def state_height(self) -> float:
        """Of the lane, without the space below it."""
        return self.state - (1 if self.state > 5 else 0)

    def box(self, call: Call) -> tuple[float, float, float, float]:
        """Left, top, width and height of a call's bar."""
        height = (self.row - 2 * self.margin - self.state) / self.lanes
        top = self.top_of_states(call.rank) + self.state + self.lane_of[call] * height
        left = self.x(call.start_s)
        right = self.right if call.end_s is None else self.x(call.end_s)
        return left, top, max(right - left, 0.75), height - (1 if height > 5 else 0)

    def for_browser(self, call: Call, index_of: Mapping[Call, int]) -> list[Any]:
        """A call as timeline.js reads it. Its last two entries: when it stopped waiting, and the
        index of the call at the other end of a message, or of the last to join a collective."""
        matched = self.matched_with[call]
        moved_s = matched.transfer_start_s(call)
        others = [each for each in matched.calls if each is not call]
        if call.is_p2p:
            other = others[-1] if others else None
        else:
            other = None if moved_s is None else matched.calls[-1]
        end_s = None if call.end_s is None else round(call.end_s, 7)
        peers = call.peer if call.is_p2p else list(call.group)
        return [
            call.rank, self.lane_of[call], call.op, call.bytes, peers,
            round(call.start_s, 7), end_s, call.source, call.code,
            None if moved_s is None else round(moved_s, 7),
            None if other is None else index_of[other],
        ]  # fmt: skip

    @property
    def legend_of_states(self) -> tuple[float, float]:
        """Its left and top."""
        return self.left, self.bottom + 28 + LEGEND

    def background(self, calls: Sequence[Call], states: dict[int, str]) -> list[Mark]:
        """Rank names, lines between ranks, the legend."""
        marks: list[Mark] = []
        n = round((self.bottom - TOP) / self.row)
        every = next(step for step in (1, 2, 4, 8, 16, 32) if step * self.row >= 14)
        for rank in range(n):
            y = TOP + rank * self.row
            if rank:
                marks.append(line(self.left, y, self.right, y, opacity=0.5))
            if rank % every == 0:
                marks.append(
                    Text(
                        x=self.left - 8, y=y + self.row / 2 + 4, text=f"rank {rank}", size=11,
                        anchor="end",
                    )
                )  # fmt: skip
            if rank in states and self.row >= 12:
                marks.append(
                    Text(
                        x=self.right - 8, y=y + self.row / 2 + 4, text=states[rank], size=11,
                        anchor="end", fill="muted",
                    )
                )  # fmt: skip
        marks += row_borders(self.nodes, left=self.left, right=self.right, top=TOP, row=self.row)
        width, height = self.right - self.left, self.bottom - TOP
        marks.append(Rect(x=self.left, y=TOP, width=width, height=height, stroke="rule"))
        x = self.left
        for op in dict.fromkeys(call.op for call in calls):
            y = self.bottom + 28
            marks.append(Rect(x=x, y=y, width=10, height=10, fill=op_color(op), radius=2))
            marks.append(Text(x=x + 15, y=y + 9, text=op, size=11, fill="muted"))
            x += 30 + text_width(op, 11)
        y = self.bottom + 28
        if calls:
            text = "paler: waiting for other ranks"
            marks.append(
                Rect(x=x, y=y, width=10, height=10, fill="muted", radius=2, opacity=WAITING)
            )
            marks.append(Text(x=x + 15, y=y + 9, text=text, size=11, fill="muted"))
            x += 30 + text_width(text, 11)
        if any(call.end_s is None for call in calls):
            marks.append(Rect(x=x, y=y, width=18, height=10, fill=ERROR, hatch=True))
            marks.append(Text(x=x + 23, y=y + 9, text="never ended", size=11, fill="muted"))
        return marks

    def axis(self) -> list[Mark]:
        marks: list[Mark] = []
        start_s, end_s = self.view
        ticks = time_ticks(start_s, end_s, 6)
        for tick, label in zip(ticks, tick_labels(ticks, end_s), strict=True):
            x = self.x(tick)
            marks.append(line(x, self.bottom, x, self.bottom + 4))
            marks.append(
                Text(
                    x=x, y=self.bottom + 16, text=label, size=11, anchor="middle", fill="muted",
                )
            )  # fmt: skip
        return marks

    def bands(self, blocks: Iterable[MeasuredBlock]) -> list[Mark]:
        """Measured blocks behind the bars. Above them a line for each pass of all ranks.

        The first pass of a label is named, and others that are as wide as the name.
        """
        marks: list[Mark] = []
        blocks = [block for block in blocks if self.is_seen(block)]
        for block in blocks:
            left, right = self.x(block.start_s), self.x(block.end_s)
            y = TOP + block.rank * self.row
            marks.append(
                Rect(x=left, y=y, width=right - left, height=self.row, fill="text", opacity=SHADE)
            )
        free = 0.0
        by_time = sorted(passes.spans(blocks).items(), key=lambda entry: entry[1])
        for (label, which), (start_s, end_s) in by_time:
            left, right = self.x(start_s), self.x(end_s)
            marks.append(
                Rect(
                    x=left,
                    y=TOP - 6,
                    width=max(right - left - 2, 1),
                    height=3,
                    fill="muted",
                    opacity=0.5,
                )
            )
            width = text_width(label, 11)
            if left >= free and (which == 0 or right - left >= width):
                marks.append(Text(x=left, y=TOP - 10, text=label, size=11, fill="muted"))
                free = left + width + 8
        return marks

    def bars(self, calls: Sequence[Call]) -> list[Mark]:
        """Bars of the static picture, paler while a call waits for other ranks.

        Small bars with the same color and opacity share a path: there may be 16,000.
        """
        small: dict[tuple[str, float], list[str]] = defaultdict(list)
        large: list[Mark] = []
        for call in filter(self.is_seen, calls):
            left, top, width, height = self.box(call)
            if call.end_s is not None and not (width > 6 and height > 6):
                waits = self._waiting_width(call)
                for x, part, opacity in (
                    (left, waits, WAITING),
                    (left + waits, width - waits, 1.0),
                ):
                    if part > 0:
                        small[op_color(call.op), opacity].append(
                            f"M{x:.1f} {top:.1f}h{part:.1f}v{height:.1f}h{-part:.1f}z"
                        )
            else:
                large += self._large_bar(call)
        merged = [
            Path(d="".join(parts), fill=color, opacity=opacity)
            for (color, opacity), parts in small.items()
        ]
        return [*merged, *large]

    def _waiting_width(self, call: Call) -> float:
        """The width of the left part of a call's bar, in which it waits; 0 if too thin to see."""
        left, _, width, _ = self.box(call)
        moved_s = self.matched_with[call].transfer_start_s(call)
        waits = 0.0 if moved_s is None else min(self.x(moved_s) - left, width)
        return waits if waits >= MIN_WAITING else 0.0

    def _large_bar(self, call: Call) -> list[Mark]:
        left, top, width, height = self.box(call)
        pending = call.end_s is None
        color = ERROR if pending else op_color(call.op)
        waits = self._waiting_width(call)
        marks: list[Mark] = [
            Rect(
                x=x, y=top, width=part, height=height, fill=color, hatch=pending, radius=2,
                opacity=opacity,
            )
            for x, part, opacity in ((left, waits, WAITING), (left + waits, width - waits, 1.0))
            if part > 0
        ]  # fmt: skip
        label = f"{call.op} {_peers_text(call)}, {call.source}" if pending else call.op
        on_wait = waits > width - waits
        if on_wait:
            width = waits
        else:
            left, width = left + waits, width - waits
        if height < 11 or text_width(label, 11) > width - 8:
            return marks
        if pending:  # a plain backdrop keeps the stripes out of the text
            marks.append(
                Rect(
                    x=left + 3, y=top + 1, width=text_width(label, 11) + 6, height=height - 2,
                    fill="surface", opacity=0.85, radius=2,
                )
            )  # fmt: skip
        ink = "text" if pending or on_wait else ink_on(color)
        marks.append(Text(x=left + 6, y=top + height / 2 + 3.5, text=label, size=11, fill=ink))
        return marks

    def arrows(self, waits: Sequence[WaitEdge]) -> list[Mark]:
        """Arrows from each waiting rank to the one it waits for; longer ones curve further out."""
        if not waits:
            return []
        x = self.right + 8
        any_cycle = any(wait.in_cycle for wait in waits)
        marks: list[Mark] = [
            Text(x=x, y=TOP - 10, text="waits for", size=11, fill="muted"),
        ]
        for wait in sorted(waits, key=lambda wait: wait.in_cycle)[-MAX_ARROWS:]:
            down = wait.awaited > wait.waiter
            lean = min(5.0, self.row / 5) * (1 if down else -1)
            y1 = TOP + (wait.waiter + 0.5) * self.row + lean
            y2 = TOP + (wait.awaited + 0.5) * self.row - lean
            reach = min(ARROWS - 34, 20 + 0.42 * abs(y2 - y1) + (0 if down else 8)) * 4 / 3
            color = ERROR if wait.in_cycle or not any_cycle else WAIT
            far = x + reach
            bow = f"M{x:.1f} {y1:.1f}C{far:.1f} {y1:.1f} {far:.1f} {y2:.1f} {x + 5:.1f} {y2:.1f}"
            half = min(4.0, self.row / 3)
            head = f"M{x:.1f} {y2:.1f}l{2 * half:.1f} {-half:.1f}v{2 * half:.1f}Z"
            marks.append(Path(d=bow, stroke=color, stroke_width=2 if self.row >= 16 else 1))
            marks.append(Path(d=head, fill=color))
            dot = 0.75 * half
            marks.append(
                Rect(x=x - dot, y=y1 - dot, width=2 * dot, height=2 * dot, radius=dot, fill=color)
            )
        return marks


def assign_lanes(calls: Sequence[Call]) -> tuple[dict[Call, int], int]:
    """A lane for each call, and the number of lanes.

    One lane is enough if no rank was in two calls at the same time. Otherwise collectives, sends
    and receives have separate lanes, the same on every rank, so that a ring's rows look alike.
    """
    by_rank: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        by_rank[call.rank].append(call)
    if all(free_lanes(rank_calls)[1] <= 1 for rank_calls in by_rank.values()):
        return dict.fromkeys(calls, 0), 1
    lane_of: dict[Call, int] = {}
    base = 0
    for kind in ("collective", "send", "recv"):
        used = 0
        for rank_calls in by_rank.values():
            lanes, count = free_lanes(
                [call for call in rank_calls if (call.op if call.is_p2p else "collective") == kind]
            )
            lane_of.update((call, base + lane % MAX_LANES) for call, lane in lanes.items())
            used = max(used, min(count, MAX_LANES))
        base += used
    return lane_of, base


def _span(calls: Sequence[Call], ended: Sequence[MeasuredBlock | Span]) -> tuple[float, float]:
    """From the first start to the last end, with room at the right for calls that never ended."""
    starts = [call.start_s for call in calls] + [each.start_s for each in ended]
    ends = [call.end_s for call in calls if call.end_s is not None]
    ends += [each.end_s for each in ended]
    if not starts:
        return 0.0, 0.001
    start, end = min(starts), max(starts + ends)
    width = max(end - start, 1e-5)
    pending = any(call.end_s is None for call in calls)
    return start, end + width * (0.8 if pending else 0.02)


def _peers_text(call: Call) -> str:
    if not call.is_p2p:
        return f"of {len(call.group)} ranks"
    if call.peer is None:
        return "from any rank"
    return f"{'to' if call.op == 'send' else 'from'} rank {call.peer}"
