"""Where the ring player draws ranks and chunks: as cards, as a wheel, or as plain nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby
from typing import Any, ClassVar

from shardlab.widgets.message_story import Story
from shardlab.widgets.palette import MEASURED, OK, rank_color
from shardlab.widgets.scene import Mark, Path, Rect, Text
from shardlab.widgets.units import format_bytes

WIDTH = 720.0
HEIGHT = 480.0
CENTER = (WIDTH / 2, HEIGHT / 2)
MOST_CARDS = 8
MOST_CARD_ROWS = 16


def layout_of(story: Story) -> Cards | Wheel | Nodes:
    """Cards, a wheel, or plain nodes where there are no chunks to show."""
    if not story.chunks:
        return Nodes(story)
    if story.world_size <= MOST_CARDS and len(story.chunks) <= MOST_CARD_ROWS:
        return Cards(story)
    return Wheel(story)


def _at_turn(turn: float, across: float, down: float) -> tuple[float, float]:
    """A point on an ellipse, clockwise from the top; across and down are its half axes."""
    angle = 2 * math.pi * turn - math.pi / 2
    return CENTER[0] + across * math.cos(angle), CENTER[1] + down * math.sin(angle)


class _Graph:
    """Ranks on a ring with the paths that messages take. Rank 0 is at the top, or left of two."""

    kind: ClassVar[str]
    key: str  # how to read the picture, in a sentence or three

    def __init__(self, story: Story) -> None:
        n = self.world_size = story.world_size
        self.across, self.down = (200.0, 130.0) if n == 2 else (162.0, 162.0)
        if 4 < n <= MOST_CARDS:
            self.across = 270.0
        elif n > MOST_CARDS:
            self.across = self.down = 200.0
        pairs = sorted({(m.sender, m.receiver) for m in story.messages})
        self.links = {pair: self.bend(*pair) for pair in pairs}
        neighbours = all((b - a) % n in (1, n - 1) for a, b in pairs)
        self.caption = CENTER if neighbours else (14.0, 26.0)

    def at(self, place: float, reach: float = 1.0) -> tuple[float, float]:
        """Where a rank is, or between two; ``reach`` 1 is on the ring itself."""
        n = self.world_size
        turn = (place - 0.5) / 2 if n == 2 else place / n
        return _at_turn(turn, self.across * reach, self.down * reach)

    @property
    def width(self) -> float:
        """Of what is drawn, without the empty sides of the scene."""
        return 2 * self.across + 160

    def center_of(self, rank: int) -> tuple[float, float]:
        return CENTER if self.world_size == 1 else self.at(rank)

    def bend(self, sender: int, receiver: int) -> tuple[float, float]:
        """The point that pulls a message's path aside: along the ring, or a little off straight."""
        n = self.world_size
        hop = (receiver - sender) % n
        if n == 2:  # there over the top, back along the bottom
            return self.at(sender + 0.5, reach=1.3)
        if hop in (1, n - 1):
            along_ring = 2 - math.cos(math.pi / n)
            between = sender + (0.5 if hop == 1 else -0.5)
            return self.at(between, along_ring if hop == 1 else 0.6 * along_ring)
        (x1, y1), (x2, y2) = self.at(sender), self.at(receiver)
        aside = 0.16  # so that there and back are two curves
        return (x1 + x2) / 2 + aside * (y2 - y1), (y1 + y2) / 2 - aside * (x2 - x1)

    def paths(self) -> Iterator[Mark]:
        """Each path with a small arrow at its middle."""
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


class Cards(_Graph):
    """A card for each rank: rows are chunks, columns whose data they hold."""

    kind = "cards"
    key = (
        "Row: chunk. Column and colour: the rank whose data has reached it. "
        "Green frame: everyone's data is in."
    )

    def __init__(self, story: Story) -> None:
        super().__init__(story)
        self.rows = len(story.chunks)
        self.column = min(20.0, 80.0 / self.world_size)
        self.row = min(18.0, 80.0 / self.rows)
        self.card = (self.column * self.world_size, self.row * self.rows)

    def corner_of(self, rank: int) -> tuple[float, float]:
        x, y = self.center_of(rank)
        return x - self.card[0] / 2, y - self.card[1] / 2

    def ground(self) -> list[Mark]:
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
                        x=x - 7, y=y + (chunk + 0.5) * self.row + 3.5, text=str(chunk), size=10,
                        anchor="end", fill="muted",
                    )
                    for chunk in range(self.rows)
                ]  # fmt: skip
        return marks

    def state(self, story: Story, step: int) -> list[Mark]:
        held = story.held_at(step)
        everyone = (1 << self.world_size) - 1
        marks: list[Mark] = []
        for (rank, chunk), mask in held.items():
            x, y = self.corner_of(rank)
            top = y + chunk * self.row
            for giver in range(self.world_size):
                has = bool(mask >> giver & 1)
                marks.append(
                    Rect(
                        x=x + giver * self.column + 1, y=top + 1, width=self.column - 2,
                        height=self.row - 2, radius=2,
                        fill=rank_color(giver) if has else "text", opacity=1.0 if has else 0.07,
                    )
                )  # fmt: skip
            if mask == everyone:
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
    """A sector for each rank, a ring for each chunk (the first one outermost)."""

    kind = "wheel"
    key = (
        "Sector: rank. Ring: chunk, the first one outermost. The bluer, the more ranks' data "
        "has reached it; green: everyone's."
    )
    outer, inner = 206.0, 88.0
    width = 2 * outer + 60  # of what is drawn, without the empty sides of the scene

    def __init__(self, story: Story) -> None:
        self.world_size = story.world_size
        self.chunks = len(story.chunks)

    def ground(self) -> list[Mark]:
        every = max(1, math.ceil(self.world_size / 32))
        marks: list[Mark] = []
        for rank in range(0, self.world_size, every):
            x, y = _at_turn(rank / self.world_size, self.outer + 14, self.outer + 14)
            marks.append(Text(x=x, y=y + 4, text=str(rank), size=11, anchor="middle"))
        return marks

    def state(self, story: Story, step: int) -> list[Mark]:
        held = story.held_at(step)
        marks: list[Mark] = []
        for rank in range(self.world_size):
            counts = [held[rank, chunk].bit_count() for chunk in range(self.chunks)]
            first = 0
            for givers, alike in groupby(counts):  # neighbours of one shade are one shape
                last = first + len(list(alike)) - 1
                color, opacity = self.shade(givers)
                d = self.sector(rank, first, last)
                marks.append(Path(d=d, fill=color, opacity=opacity))
                first = last + 1
        return marks

    def shade(self, givers: int) -> tuple[str, float]:
        """Colour and opacity of a cell that holds the data of so many ranks."""
        if givers == self.world_size:
            return OK, 1.0
        return MEASURED, 0.1 + 0.9 * givers / self.world_size

    def sector(self, rank: int, first: int, last: int) -> str:
        """The outline of some neighbouring chunks, as straight-sided as they are on the screen."""
        depth = (self.outer - self.inner) / self.chunks
        gap = min(0.5, depth * 0.1)
        far, near = self.outer - first * depth, self.outer - (last + 1) * depth + gap
        half = 0.47
        points = [
            _at_turn((rank + side * half) / self.world_size, radius, radius)
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


class Nodes(_Graph):
    """A disc for each rank, where only the bytes of messages are known."""

    kind = "nodes"

    def __init__(self, story: Story) -> None:
        super().__init__(story)
        self.disc = max(6.0, min(34.0, 400 / self.world_size))
        self.roomy = self.disc >= 30  # for the bytes received, below the number
        self.key = "In a rank's disc: the bytes it has received so far." if self.roomy else ""

    def ground(self) -> list[Mark]:
        marks = list(self.paths())
        for rank in range(self.world_size):
            x, y = self.center_of(rank)
            marks.append(
                Rect(
                    x=x - self.disc, y=y - self.disc, width=2 * self.disc, height=2 * self.disc,
                    radius=self.disc, fill="surface", stroke=rank_color(rank), stroke_width=3,
                )
            )  # fmt: skip
            size = 15.0 if self.disc > 14 else 8.0
            base = y - 2 if self.roomy else y + 0.35 * size
            marks.append(Text(x=x, y=base, text=str(rank), size=size, anchor="middle", weight=600))
        return marks

    def state(self, story: Story, step: int) -> list[Mark]:
        """What each rank received so far, in its disc."""
        received = [0] * self.world_size
        for message in story.messages:
            if message.step < step and message.end_s is not None:
                received[message.receiver] += message.bytes
        if not self.roomy:
            return []
        marks: list[Mark] = []
        for rank, count in enumerate(received):
            x, y = self.center_of(rank)
            marks.append(
                Text(
                    x=x, y=y + 14, text=format_bytes(count), size=10,
                    anchor="middle", fill="muted",
                )
            )  # fmt: skip
        return marks

    def as_json(self) -> dict[str, Any]:
        return super().as_json() | {"roomy": self.roomy}
