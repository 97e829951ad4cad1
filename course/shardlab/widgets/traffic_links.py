"""The traffic map's second mode: nodes as boxes, and what each one's link carried over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardlab.display.palette import MEASURED, ink_on, rank_color
from shardlab.run import Links, Run, Traffic
from shardlab.widgets import passes
from shardlab.widgets.node_borders import several
from shardlab.widgets.picture import NAMED_RANKS
from shardlab.widgets.scene import Mark, Path, Rect, Text, as_json, line, text_width
from shardlab.widgets.time_axis import tick_labels, time_ticks
from shardlab.widgets.timeline import from_zero
from shardlab.widgets.units import fixed, format_bytes, format_seconds, format_si

TOP = 30.0  # names of measured blocks are above
AXIS = 50.0  # below the rows: ticks and the legend
BOX_LEFT, BOX_RIGHT = 1.0, 150.0
PLOT_LEFT, PLOT_RIGHT = 290.0, 756.0
SWITCH_LEFT, SWITCH_WIDTH = 772.0, 18.0
LINK = 24.0  # from the top of a row to its link, whose plot is below
CHIP = 26.0  # width of a rank in its box
LEAST_ROW, LARGEST_ROW, ROWS_HEIGHT = 78.0, 118.0, 480.0
FULL = 1.1  # a half of a plot reaches this share of the link's speed: a link may burst

Span = tuple[float, float]  # seconds


@dataclass(frozen=True)
class LinkView:
    """A measured block, or the whole run: where it is on the time axis, and its bytes by node."""

    spans: list[Span]
    sent_bytes: list[int]  # by the node's ranks to other nodes
    received_bytes: list[int]


class TrafficLinks:
    """Positions, marks and words of all links. The time axis is the timeline's."""

    def __init__(self, run: Run, links: Links) -> None:
        """``links``: of the run, which has several nodes."""
        traffic = from_zero(run).traffic
        assert traffic.links is not None
        self.links = links = traffic.links.since(0.0)
        self.nodes = several(traffic.nodes)
        self.count = max(self.nodes) + 1  # a function may run on fewer
        self.start_s, self.end_s = 0.0, float(links.time_s[-1])
        self.row = min(LARGEST_ROW, max(LEAST_ROW, ROWS_HEIGHT / self.count))
        self.bottom = TOP + self.count * self.row
        self.height = self.bottom + AXIS
        rates = links.sent_bits_per_s, links.received_bits_per_s
        peak = max(1.0, *(float(rate.max(initial=0.0)) for rate in rates))
        self.full_bits_per_s = links.bits_per_s or peak
        self.speed = format_si(self.full_bits_per_s, "bit/s")
        every = format_seconds(float(np.median(np.diff(links.time_s))))
        self.small = (
            f"Links: their own counters, read about every {every}, with headers and "
            "acknowledgements. A link carries its speed in each direction."
        )
        self.phases: dict[str, list[Span]] = {label: [] for label in traffic.labels}
        for (label, _), span in passes.spans(traffic.blocks).items():
            self.phases[label].append(span)
        whole = [(self.start_s, self.end_s)]
        self.views = {
            "": _view(traffic, whole),
            **{label: _view(traffic[label], spans) for label, spans in self.phases.items()},
        }

    def scene(self) -> dict[str, Any]:
        links = self.links
        return {
            "height": self.height,
            "top": TOP,
            "row": self.row,
            "link": LINK,
            "plot": [PLOT_LEFT, PLOT_RIGHT],
            "box": [BOX_LEFT, BOX_RIGHT],
            "nodes": [self._ranks(node) for node in range(self.count)],
            "time_s": links.time_s.round(9).tolist(),
            "sent": links.sent_bytes.T.tolist(),
            "received": links.received_bytes.T.tolist(),
            "bits_per_s": links.bits_per_s,
            "small": self.small,
            "marks": as_json(self._common),
            "views": {
                name: {
                    "spans": view.spans,
                    "sent": view.sent_bytes,
                    "received": view.received_bytes,
                    "marks": as_json(self._of_view(name)),
                }
                for name, view in self.views.items()
            },
        }

    def marks(self, block: str) -> list[Mark]:
        return [*self._of_view(block), *self._common]

    def words(self, block: str) -> str:
        """What each link carried, in a sentence."""
        view = self.views[block]
        shares = self._shares(view)
        texts = []
        for node in range(min(self.count, NAMED_RANKS)):
            sent, received = view.sent_bytes[node], view.received_bytes[node]
            text = f"node {node} sent {format_bytes(sent)} and received {format_bytes(received)}"
            if shares is not None:
                sent_share, received_share = (f"{fixed(100 * way[node], 1)} %" for way in shares)
                text += f", on average {sent_share} and {received_share} of {self.speed}"
            texts.append(text)
        return "; ".join(texts)

    def _shares(self, view: LinkView) -> list[Any] | None:
        """[sent, received], each [nodes]: the share of their speed; None if they have none."""
        if self.links.bits_per_s is None:
            return None
        shares = [self.links.utilization(*span) for span in view.spans]
        weights = [end_s - start_s for start_s, end_s in view.spans]
        return [np.average(way, axis=0, weights=weights) for way in zip(*shares, strict=True)]

    def _ranks(self, node: int) -> list[int]:
        return [rank for rank, of in enumerate(self.nodes) if of == node]

    def x(self, at_s: float) -> float:
        share = (at_s - self.start_s) / (self.end_s - self.start_s)
        return PLOT_LEFT + min(max(share, 0.0), 1.0) * (PLOT_RIGHT - PLOT_LEFT)

    def _plot(self, node: int) -> tuple[float, float]:
        """Top and bottom of a node's plot."""
        top = TOP + node * self.row
        return top + LINK + 8, top + self.row - 8

    # ---- marks ----

    @property
    def _common(self) -> list[Mark]:
        marks: list[Mark] = []
        for node in range(self.count):
            marks += [*self._node(node), *self._over_time(node)]
        middle = SWITCH_LEFT + SWITCH_WIDTH / 2
        marks.append(
            Rect(
                x=SWITCH_LEFT, y=TOP + 6, width=SWITCH_WIDTH, height=self.bottom - TOP - 14,
                radius=4, fill="text", opacity=0.25,
            )
        )  # fmt: skip
        marks.append(Text(x=middle, y=TOP - 2, text="switch", size=11, anchor="middle"))
        return [*marks, *self._axis()]

    def _node(self, node: int) -> list[Mark]:
        """A node's box with its ranks, and its link to the switch."""
        top, ranks = TOP + node * self.row, self._ranks(node)
        width, height, long = BOX_RIGHT - BOX_LEFT, self.row - 14, SWITCH_LEFT - BOX_RIGHT
        marks: list[Mark] = [
            Rect(x=BOX_LEFT, y=top + 6, width=width, height=height, radius=6, stroke="text"),
            Text(x=BOX_LEFT + 10, y=top + 23, text=f"node {node}", weight=600),
            Rect(x=BOX_RIGHT, y=top + LINK - 1, width=long, height=3, fill="text"),
        ]  # fmt: skip
        across = int((width - 16) // (CHIP + 6))
        if len(ranks) > across * int((height - 24) // 24):
            text = f"ranks {ranks[0]} to {ranks[-1]}"
            return [*marks, Text(x=BOX_LEFT + 10, y=top + 42, text=text, size=11)]
        for index, rank in enumerate(ranks):
            x = BOX_LEFT + 10 + index % across * (CHIP + 6)
            y, color = top + 32 + index // across * 24, rank_color(rank)
            marks.append(Rect(x=x, y=y, width=CHIP, height=18, radius=3, fill=color))
            marks.append(
                Text(
                    x=x + CHIP / 2, y=y + 13, text=str(rank), size=11, anchor="middle",
                    fill=ink_on(color),
                )
            )  # fmt: skip
        return marks

    def _over_time(self, node: int) -> list[Mark]:
        """Below the link: upwards what the node sent, downwards what it received."""
        top, bottom = self._plot(node)
        middle, half = (top + bottom) / 2, (bottom - top) / 2 / FULL
        marks: list[Mark] = []
        for text, up, rates in (
            ("sent", -1, self.links.sent_bits_per_s),
            ("received", 1, self.links.received_bits_per_s),
        ):
            y = middle + up * half
            d = self._steps(rates[:, node], middle, up * half)
            marks.append(Path(d=d, fill=MEASURED))
            marks.append(line(PLOT_LEFT, y, PLOT_RIGHT, y))
            name = Text(x=BOX_RIGHT + 14, y=middle + up * half / 2 + 4, text=text, size=11)
            full = "100 %" if self.links.bits_per_s else self.speed
            marks += [name, _label(y, full)]
        zero = line(PLOT_LEFT, middle, PLOT_RIGHT, middle, stroke="text")
        return [*marks, zero, _label(middle, "0")]

    def _steps(self, rates: Any, middle: float, half: float) -> str:
        """SVG path data: a step for each interval between two readings."""
        parts, times = [f"M{self.x(self.links.time_s[0]):.1f} {middle:.1f}"], self.links.time_s
        for rate, end_s in zip(rates, times[1:], strict=True):
            share = min(rate / self.full_bits_per_s, FULL)
            parts.append(f"V{middle + share * half:.1f}H{self.x(end_s):.1f}")
        return "".join([*parts, f"V{middle:.1f}Z"])

    def _axis(self) -> list[Mark]:
        marks: list[Mark] = []
        ticks = time_ticks(self.start_s, self.end_s, 6)
        for tick, label in zip(ticks, tick_labels(ticks, self.end_s), strict=True):
            x, y = self.x(tick), self.bottom + 12
            marks.append(line(x, self.bottom - 4, x, self.bottom))
            marks.append(Text(x=x, y=y, text=label, size=11, anchor="middle", fill="muted"))
        y = self.bottom + 28
        text = "measured: bytes over time"
        if self.links.bits_per_s:
            text += ", as a share of the link's speed"
        marks.append(Rect(x=PLOT_LEFT, y=y, width=10, height=10, fill=MEASURED, radius=2))
        marks.append(Text(x=PLOT_LEFT + 16, y=y + 9, text=text, size=11, fill="muted"))
        return marks

    def _of_view(self, block: str) -> list[Mark]:
        """Bands behind the measured blocks, and each link's bytes in this block."""
        marks: list[Mark] = []
        named: list[tuple[float, float]] = []
        # Where two names do not fit, the rarer block has one
        rarity = {label: (label != block, len(spans)) for label, spans in self.phases.items()}
        spans = [(label, *span) for label in self.phases for span in self.phases[label]]
        for label, start_s, end_s in sorted(spans, key=lambda span: rarity[span[0]]):
            left, right = self.x(start_s), self.x(end_s)
            marks.append(
                Rect(
                    x=left, y=TOP - 6, width=max(right - left - 2, 1), height=3, fill="muted",
                    opacity=1 if label == block else 0.5,
                )
            )  # fmt: skip
            long = text_width(label, 11)
            begin = min(left, SWITCH_LEFT - 12 - long)
            if all(begin >= stop + 8 or begin + long + 8 <= start for start, stop in named):
                named.append((begin, begin + long))
                marks.append(Text(x=begin, y=TOP - 10, text=label, size=11, fill="muted"))
            for node in range(self.count if block in ("", label) else 0):
                top, bottom = self._plot(node)
                marks.append(
                    Rect(
                        x=left, y=top, width=right - left, height=bottom - top, fill="text",
                        opacity=0.1 if block else 0.06,
                    )
                )  # fmt: skip
        view = self.views[block]
        speed = f", {self.speed}" if self.links.bits_per_s else ""
        for node in range(self.count):
            sent = format_bytes(view.sent_bytes[node])
            received = format_bytes(view.received_bytes[node])
            text = f"sent {sent}, received {received}{speed}"
            y = TOP + node * self.row + LINK - 7
            marks.append(Text(x=PLOT_LEFT, y=y, text=text, size=12))
        return marks


def traffic_links(run: Run) -> TrafficLinks | None:
    """None for a run on one node, and for one whose links were not read."""
    links = run.traffic.links
    if links is None or not several(run.traffic.nodes) or len(links.time_s) < 2:
        return None
    return TrafficLinks(run, links)


def _label(y: float, text: str) -> Text:
    return Text(x=PLOT_LEFT - 6, y=y + 4, text=text, size=11, anchor="end", fill="muted")


def _view(traffic: Traffic, spans: Sequence[Span]) -> LinkView:
    between = traffic.between_nodes
    own = between.diagonal()
    sent, received = between.sum(axis=1) - own, between.sum(axis=0) - own
    return LinkView([*spans], sent.tolist(), received.tolist())
