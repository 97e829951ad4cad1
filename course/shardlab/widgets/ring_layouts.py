"""The ring player's layouts of ranks and chunks: cards, a wheel, or plain nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby
from typing import Any, ClassVar

from shardlab.display.palette import OK, rank_color
from shardlab.widgets.message_history import MessageHistory
from shardlab.widgets.scene import Mark, Path, Rect, Text
from shardlab.widgets.units import format_bytes

WIDTH = 720.0
HEIGHT = 480.0
CENTER = (WIDTH / 2, HEIGHT / 2)
MAX_CARDS = 8
MAX_CARD_ROWS = 16


def layout_of(history: MessageHistory) -> Cards | Wheel | Nodes:
    """Cards for few ranks, a wheel for many, plain nodes if there are no chunks to show."""
    if not history.chunks:
        return Nodes(history)
    if history.world_size <= MAX_CARDS and len(history.chunks) <= MAX_CARD_ROWS:
        return Cards(history)
    return Wheel(history)


def _point_on_ellipse(turn: float, across: float, down: float) -> tuple[float, float]:
    """A point on an ellipse, clockwise from the top; across and down are its semi-axes."""
    angle = 2 * math.pi * turn - math.pi / 2
    return CENTER[0] + across * math.cos(angle), CENTER[1] + down * math.sin(angle)


class _Ring:
    """Ranks on a ring, and their messages' paths; rank 0 is at the top (with two ranks, left)."""

    kind: ClassVar[str]
    key: str  # how to read the picture

    def __init__(self, history: MessageHistory) -> None:
        n = self.world_size = history.world_size
        self.across, self.down = (200.0, 130.0) if n == 2 else (162.0, 162.0)
        if 4 < n <= MAX_CARDS:
            self.across = 270.0
        elif n > MAX_CARDS:
            self.across = self.down = 200.0
        pairs = sorted({(m.sender, m.receiver) for m in history.messages})
        self.links = {pair: self.control_point(*pair) for pair in pairs}
        neighbors = all((b - a) % n in (1, n - 1) for a, b in pairs)
        self.caption = CENTER if neighbors else (14.0, 26.0)

    def at(self, place: float, reach: float = 1.0) -> tuple[float, float]:
        """The position of a rank, or of a point between two; ``reach`` 1 is on the ring itself."""
        n = self.world_size
        turn = (place - 0.5) / 2 if n == 2 else place / n
        return _point_on_ellipse(turn, self.across * reach, self.down * reach)

    @property
    def width(self) -> float:
        """Width of the drawing, without the empty sides of the scene."""
        return 2 * self.across + 160

    def center_of(self, rank: int) -> tuple[float, float]:
        return CENTER if self.world_size == 1 else self.at(rank)

    def control_point(self, sender: int, receiver: int) -> tuple[float, float]:
        """Control point of a message's curve: along the ring, or slightly off the straight line."""
        n = self.world_size
        hop = (receiver - sender) % n
        if n == 2:  # one direction over the top, the other along the bottom
            return self.at(sender + 0.5, reach=1.3)
        if hop in (1, n - 1):
            along_ring = 2 - math.cos(math.pi / n)
            between = sender + (0.5 if hop == 1 else -0.5)
            return self.at(between, along_ring if hop == 1 else 0.6 * along_ring)
        (x1, y1), (x2, y2) = self.at(sender), self.at(receiver)
        aside = 0.16  # so that the two directions have separate curves
        return (x1 + x2) / 2 + aside * (y2 - y1), (y1 + y2) / 2 - aside * (x2 - x1)

    def paths(self) -> Iterator[Mark]:
        """Each path with a small arrow in the middle."""
        for (sender, receiver), (cx, cy) in self.links.items():
            (x1, y1), (x2, y2) = self.center_of(sender), self.center_of(receiver)
            d = f"M{x1:.1f} {y1:.1f}Q{cx:.1f} {cy:.1f} {x2:.1f} {y2:.1f}"
            yield Path(d=d, stroke="rule", stroke_width=1.5, dash="2 4")
            mx, my = (x1 + 2 * cx + x2) / 4, (y1 + 2 * cy + y2) / 4
            angle = math.atan2(y2 - y1, x2 - x1)
            yield Path(d=_arrow_head(mx, my, angle, 7), fill="muted")

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "caption": list(self.caption),
            "centers": [list(self.center_of(rank)) for rank in range(self.world_size)],
            "links": {f"{a}>{b}": list(control) for (a, b), control in self.links.items()},
        }


def _arrow_head(x: float, y: float, angle: float, size: float) -> str:
    tip = (x + size * math.cos(angle), y + size * math.sin(angle))
    sides = [
        (x + 0.8 * size * math.cos(angle + turn), y + 0.8 * size * math.sin(angle + turn))
        for turn in (2.2, -2.2)
    ]
    points = " ".join(f"{px:.1f} {py:.1f}" for px, py in (tip, *sides))
    return f"M{points}Z"


class Cards(_Ring):
    """A card for each rank: a row per chunk, a column per contributing rank."""

    kind = "cards"
    key = (
        "Row: chunk. Column and color: the rank that contributed. "
        "Green frame: all ranks have contributed."
    )

    def __init__(self, history: MessageHistory) -> None:
        super().__init__(history)
        self.rows = len(history.chunks)
        self.column = min(20.0, 80.0 / self.world_size)
        self.row = min(18.0, 80.0 / self.rows)
        self.card = (self.column * self.world_size, self.row * self.rows)

    def corner_of(self, rank: int) -> tuple[float, float]:
        x, y = self.center_of(rank)
        return x - self.card[0] / 2, y - self.card[1] / 2

    def background(self) -> list[Mark]:
        marks = list(self.paths())
        width, height = self.card
        for rank in range(self.world_size):
            x, y = self.corner_of(rank)
            marks.append(
                Rect(
                    x=x - 22, y=y - 24, width=width + 30, height=height + 32,
                    fill="surface", stroke="rule", radius=7,
                )
            )  # fmt: skip
            marks.append(
                Rect(x=x - 14, y=y - 17, width=9, height=9, fill=rank_color(rank), radius=2)
            )
            marks.append(Text(x=x, y=y - 8, text=f"rank {rank}", size=12, weight=600))
            if self.row >= 9:
                marks += [
                    Text(
                        x=x - 7, y=y + (chunk + 0.5) * self.row + 3.5, text=str(chunk), size=11,
                        anchor="end", fill="muted",
                    )
                    for chunk in range(self.rows)
                ]  # fmt: skip
        return marks

    def state(self, history: MessageHistory, step: int) -> list[Mark]:
        held = history.held_at(step)
        all_ranks = (1 << self.world_size) - 1
        marks: list[Mark] = []
        for (rank, chunk), mask in held.items():
            x, y = self.corner_of(rank)
            top = y + chunk * self.row
            for contributor in range(self.world_size):
                has = bool(mask >> contributor & 1)
                marks.append(
                    Rect(
                        x=x + contributor * self.column + 1, y=top + 1, width=self.column - 2,
                        height=self.row - 2, radius=2,
                        fill=rank_color(contributor) if has else "text",
                        opacity=1.0 if has else 0.07,
                    )
                )  # fmt: skip
            if mask == all_ranks:
                marks.append(
                    Rect(
                        x=x, y=top, width=self.card[0], height=self.row, radius=3,
                        stroke=OK, stroke_width=2,
                    )
                )  # fmt: skip
        return marks

    def as_json(self) -> dict[str, Any]:
        return super().as_json() | {
            "row": self.row,
            "column": self.column,
            "corners": [list(self.corner_of(rank)) for rank in range(self.world_size)],
        }


class Wheel:
    """A sector for each rank, a ring for each chunk (chunk 0 outermost)."""

    kind = "wheel"
    key = (
        "Sector: rank. Ring: chunk, chunk 0 outermost. Stronger gray: more ranks have contributed; "
        "green: all of them."
    )
    outer, inner = 206.0, 88.0
    width = 2 * outer + 60  # of the drawing, without the empty sides of the scene

    def __init__(self, history: MessageHistory) -> None:
        self.world_size = history.world_size
        self.chunks = len(history.chunks)

    def background(self) -> list[Mark]:
        every = max(1, math.ceil(self.world_size / 32))
        marks: list[Mark] = []
        for rank in range(0, self.world_size, every):
            x, y = _point_on_ellipse(rank / self.world_size, self.outer + 14, self.outer + 14)
            marks.append(Text(x=x, y=y + 4, text=str(rank), size=11, anchor="middle"))
        return marks

    def state(self, history: MessageHistory, step: int) -> list[Mark]:
        held = history.held_at(step)
        marks: list[Mark] = []
        for rank in range(self.world_size):
            counts = [held[rank, chunk].bit_count() for chunk in range(self.chunks)]
            first = 0
            for contributors, group in groupby(counts):  # neighbors of the same shade share a shape
                last = first + len(list(group)) - 1
                color, opacity = self.shade(contributors)
                d = self.sector(rank, first, last)
                marks.append(Path(d=d, fill=color, opacity=opacity))
                first = last + 1
        return marks

    def shade(self, contributors: int) -> tuple[str, float]:
        """Color and opacity of a cell, by the number of ranks that contributed to it."""
        if contributors == self.world_size:
            return OK, 1.0
        return "text", 0.08 + 0.62 * contributors / self.world_size

    def sector(self, rank: int, first: int, last: int) -> str:
        """The outline of neighboring chunks, with straight sides as in the browser."""
        depth = (self.outer - self.inner) / self.chunks
        gap = min(0.5, depth * 0.1)
        far, near = self.outer - first * depth, self.outer - (last + 1) * depth + gap
        half = 0.47
        points = [
            _point_on_ellipse((rank + side * half) / self.world_size, radius, radius)
            for radius, side in ((far, -1), (far, 1), (near, 1), (near, -1))
        ]
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + "Z"

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "caption": list(CENTER),
            "outer": self.outer,
            "inner": self.inner,
        }


class Nodes(_Ring):
    """A disc for each rank, for runs where only the bytes of messages are known."""

    kind = "nodes"

    def __init__(self, history: MessageHistory) -> None:
        super().__init__(history)
        self.disc = max(6.0, min(34.0, 400 / self.world_size))
        self.shows_bytes = self.disc >= 30  # received so far, below the number
        self.key = "Disc: a rank, and the bytes it has received." if self.shows_bytes else ""

    def background(self) -> list[Mark]:
        marks = list(self.paths())
        for rank in range(self.world_size):
            x, y = self.center_of(rank)
            marks.append(
                Rect(
                    x=x - self.disc, y=y - self.disc, width=2 * self.disc, height=2 * self.disc,
                    radius=self.disc, fill="surface", stroke=rank_color(rank), stroke_width=3,
                )
            )  # fmt: skip
            size = 15.0 if self.disc > 14 else 11.0
            base = y - 2 if self.shows_bytes else y + 0.35 * size
            marks.append(Text(x=x, y=base, text=str(rank), size=size, anchor="middle", weight=600))
        return marks

    def state(self, history: MessageHistory, step: int) -> list[Mark]:
        """The bytes each rank has received so far, in its disc."""
        received = [0] * self.world_size
        for message in history.messages:
            if message.step < step and message.end_s is not None:
                received[message.receiver] += message.bytes
        if not self.shows_bytes:
            return []
        marks: list[Mark] = []
        for rank, count in enumerate(received):
            x, y = self.center_of(rank)
            marks.append(
                Text(
                    x=x, y=y + 14, text=format_bytes(count), size=11,
                    anchor="middle", fill="muted",
                )
            )  # fmt: skip
        return marks

    def as_json(self) -> dict[str, Any]:
        return super().as_json() | {"shows_bytes": self.shows_bytes}
