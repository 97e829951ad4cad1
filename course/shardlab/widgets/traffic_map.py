"""The traffic map: the bytes that each rank sent to every other rank, next to a prediction.

For a run on several nodes there is a second mode, in traffic_links.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import traitlets
from numpy.typing import ArrayLike, NDArray

from shardlab.display.palette import BLACK, MEASURED, PREDICTED, ink_on
from shardlab.run import Run, Traffic
from shardlab.widgets.node_borders import (
    NAMES_WIDTH,
    column_borders,
    rank_name,
    row_borders,
    several,
)
from shardlab.widgets.picture import NAMED_RANKS, Picture, module
from shardlab.widgets.prediction import Prediction, guess_in
from shardlab.widgets.scene import Mark, Rect, Text, as_json, line, text_width, to_svg
from shardlab.widgets.traffic_links import TrafficLinks, traffic_links
from shardlab.widgets.units import format_bytes

Matrix = NDArray[np.float64]

DARK_CELL = 0x1F  # each channel of an empty cell in the dark theme
WIDTH = 800.0
TOP = 50.0
LEFT = 58.0
WHOLE_RUN = "whole run"


class TrafficMap(Picture):
    """An N×N heat map (row sends to column) and a bar for each rank. Made by `traffic_map`.

    ``block`` is the measured block that is shown, "" for the whole run; ``mode`` is "ranks", or
    "links" if the run has links between nodes. Both may be set.
    """

    _esm: ClassVar[str] = module("traffic_links.js", "traffic_map.js")
    block = traitlets.Unicode("").tag(sync=True)
    mode = traitlets.Unicode("ranks").tag(sync=True)

    def static_svg(self) -> str:
        view = self._view()
        if self._links is not None and self.mode == "links":
            return to_svg(
                self._links.marks(self.block),
                self.scene["width"],
                self._links.height,
                title=f"Links of the nodes · {view['title']}",
                subtitle=self._total(view),
                footer=f"{self.scene['source']}. {self._links.small}",
            )
        return to_svg(
            self._marks[self.block],
            self.scene["width"],
            self.scene["height"],
            title=f"Bytes sent · {view['title']}",
            subtitle=self._total(view),
            footer=self.scene["source"],
        )

    def summary(self) -> str:
        view = self._view()
        return f"{view['title']}: {self._total(view)}"

    def _total(self, view: dict[str, Any]) -> str:
        total, ranks = format_bytes(view["total_bytes"]), self.scene["world_size"]
        return f"{total} by {ranks} rank{'s' * (ranks != 1)}{view['between']}"

    def alternative(self) -> str:
        if self._links is not None and self.mode == "links":
            return f"{self.summary()}. {self._links.words(self.block)}"
        sent = self._view()["sent"]
        nodes = self.scene["nodes"]
        by_rank = [
            f"{rank_name(nodes, rank)} sent {format_bytes(sum(row))}"
            for rank, row in enumerate(sent)
        ]
        return ", ".join([self.summary(), *(by_rank if len(sent) <= NAMED_RANKS else [])])

    def _view(self) -> dict[str, Any]:
        return next(view for view in self.scene["views"] if view["block"] == self.block)

    @traitlets.validate("block")
    def _validate(self, proposal: dict[str, Any]) -> str:
        known = [view["block"] for view in self.scene["views"]]
        if proposal["value"] not in known:
            raise traitlets.TraitError(f"block must be one of {known}")
        return str(proposal["value"])

    @traitlets.validate("mode")
    def _validate_mode(self, proposal: dict[str, Any]) -> str:
        known = ["ranks", *(["links"] if self._links is not None else [])]
        if proposal["value"] not in known:
            raise traitlets.TraitError(f"mode must be one of {known}")
        return str(proposal["value"])

    def __init__(
        self,
        views: dict[str, Traffic],
        predicted: Matrix | None,
        block: str,
        links: TrafficLinks | None,
        mode: str,
    ) -> None:
        self._links = links
        super().__init__(scene=self._scene(views, predicted, block), block=block, mode=mode)
        self.observe(self.refresh, "mode")  # a saved notebook has the reader's choice

    def _scene(
        self, views: dict[str, Traffic], predicted: Matrix | None, block: str
    ) -> dict[str, Any]:
        traffic = views[""]
        world_size = len(traffic.sent_bytes)
        nodes = several(traffic.nodes)
        panels = 2 if predicted is not None and predicted.ndim == 2 else 1
        layout = TrafficMapLayout(world_size, panels, nodes)
        shown = {name: predicted if name == block else None for name in views}
        self._marks = {
            name: layout.marks(view.sent_bytes.astype(float), shown[name])
            for name, view in views.items()
        }
        return {
            "world_size": world_size,
            "nodes": nodes,
            "width": WIDTH,
            "height": layout.height,
            "top": TOP,
            "cell": layout.cell,
            "heat_x": layout.heat_x,
            "bars_x": layout.bars_x,
            "source": traffic.source[:1].upper() + traffic.source[1:],
            "links": None if self._links is None else self._links.scene(),
            "views": [
                {
                    "block": name,
                    "title": name or WHOLE_RUN,
                    "total_bytes": int(view.sent_bytes.sum()),
                    "between": _between(view),
                    "sent": view.sent_bytes.tolist(),
                    "predicted": None if (expected := shown[name]) is None else expected.tolist(),
                    "marks": as_json(self._marks[name]),
                }
                for name, view in views.items()
            ],
        }

    def follow(self, prediction: Prediction, views: dict[str, Traffic], block: str) -> None:
        """Hide the map until the reader guesses, and redraw it for each guess."""

        def draw(_: object) -> None:
            guess = _prediction(prediction.value, len(views[""].sent_bytes))
            self.scene = self._scene(views, guess, block)
            self.refresh()

        self.prediction = prediction
        prediction.observe(draw, "value")


def traffic_map(
    run: Run,
    predicted: ArrayLike | Prediction | None = None,
    block: str | None = None,
    mode: str = "ranks",
) -> TrafficMap:
    """Draw what the ranks of ``run`` sent each other.

    predicted: bytes that each rank sends (one number for all, or a list of N), or an [N, N] matrix
        (row sends to column), or a `predict` whose guess is one of these, now or later: a live map
        is hidden until then. It is shown next to ``block``, or to the whole run without one.
    block: the label of a ``with measure(label):`` block to show first.
    mode: "links" shows first the nodes, and what the link of each carried over time. A run without
        such links, on one node or in a job, shows its ranks.

    Raises ValueError for any other ``predicted`` or ``mode``, KeyError for a block that was not
    measured.
    """
    views = {"": run.traffic} | {label: run.traffic[label] for label in run.traffic.labels}
    if block is not None:
        views[block] = run.traffic[block]
    if mode not in ("ranks", "links"):
        raise ValueError(f'mode is "ranks" or "links", not {mode!r}')
    guess = _prediction(guess_in(predicted), run.world_size)
    links = traffic_links(run)
    picture = TrafficMap(views, guess, block or "", links, mode if links else "ranks")
    if isinstance(predicted, Prediction):
        picture.follow(predicted, views, block or "")
    return picture


def _prediction(predicted: ArrayLike | None, world_size: int) -> Matrix | None:
    """[N] bytes by rank or [N, N] bytes from row to column."""
    if predicted is None:
        return None
    guess = np.asarray(predicted, dtype=float)
    if guess.ndim == 0:
        guess = np.full(world_size, float(guess))
    if guess.shape not in {(world_size,), (world_size, world_size)}:
        raise ValueError(
            f"predicted has shape {guess.shape}: pass one number, {world_size} numbers "
            f"(bytes that each rank sends) or a {world_size}×{world_size} matrix"
        )
    if not np.isfinite(guess).all() or (guess < 0).any():
        raise ValueError("predicted must be finite and not negative")
    return guess


def _between(traffic: Traffic) -> str:
    """ ", 3 MiB of it between nodes"; "" on one node."""
    if not several(traffic.nodes):
        return ""
    between = traffic.between_nodes
    return f", {format_bytes(between.sum() - between.trace())} of it between nodes"


def cell_ink(color: str, opacity: float) -> str:
    """Black on a strong color; the theme's text color while the cell is dark in the dark theme."""
    channels = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    mixed = (round(opacity * each + (1 - opacity) * DARK_CELL) for each in channels)
    ink = ink_on("#" + "".join(f"{each:02x}" for each in mixed))
    return ink if ink == BLACK else "text"


class TrafficMapLayout:
    """Positions: one or two heat maps, and to their right bars that continue the rows."""

    def __init__(self, world_size: int, panels: int, nodes: Sequence[int]) -> None:
        self.world_size, self.nodes = world_size, nodes
        self.left = LEFT + (NAMES_WIDTH if nodes else 0)
        largest = 384.0 if panels == 1 else 240.0 - (self.left - LEFT) / 2
        self.cell = float(max(1, math.floor(min(72.0, largest / world_size))))
        self.side = self.cell * world_size
        self.heat_x = [self.left + panel * (self.side + 46) for panel in range(panels)]
        self.bars_x = max(self.heat_x[-1] + self.side + 40, self.left + 252)  # room for the legend
        self.bars_width = WIDTH - self.bars_x - 74
        self.height = TOP + self.side + 52

    def marks(self, sent: Matrix, predicted: Matrix | None) -> list[Mark]:
        """The whole picture. sent: [N, N]; predicted: [N], [N, N] or None."""
        matrix = predicted if predicted is not None and predicted.ndim == 2 else None
        by_rank = (
            predicted.sum(axis=1) if matrix is not None and predicted is not None else predicted
        )
        panels = [(sent, MEASURED, "measured")]
        if len(self.heat_x) == 2:
            empty = np.zeros_like(sent)
            panels.insert(0, (empty if matrix is None else matrix, PREDICTED, "predicted"))
        max_bytes = max(1.0, *(float(values.max()) for values, _, _ in panels))
        marks: list[Mark] = []
        for x, (values, color, title) in zip(self.heat_x, panels, strict=True):
            marks += self._heat(x, values, color, max_bytes, title if len(panels) == 2 else "")
        marks += self._scale(max_bytes)
        marks += self._bars(sent.sum(axis=1), by_rank)
        return marks + row_borders(self.nodes, left=self.left, right=WIDTH, top=TOP, row=self.cell)

    def _heat(
        self, x: float, values: Matrix, color: str, max_bytes: float, title: str
    ) -> list[Mark]:
        cell = self.cell
        gap = 2.0 if cell >= 20 else 1.0 if cell >= 10 else 0.0
        heading = f"{title}: row sends to column" if title else "row sends to column"
        marks: list[Mark] = [Text(x=x, y=12, text=heading, size=12, fill="muted")]
        marks += self._names(x)
        # One pale backdrop; a cell without traffic has no mark of its own.
        backdrop = Rect(
            x=x, y=TOP, width=self.side, height=self.side, fill="text", opacity=0.06, radius=3
        )
        marks.append(backdrop)
        if cell >= 12:  # a rank does not send to itself
            marks.append(line(x, TOP, x + self.side, TOP + self.side))
        bottom = TOP + self.side
        marks += column_borders(self.nodes, left=x, top=TOP, bottom=bottom, column=cell)
        for row, column in zip(*np.nonzero(values), strict=True):
            level = float(values[row, column]) / max_bytes
            left, top = x + float(column) * cell, TOP + float(row) * cell
            box = cell - gap
            marks.append(
                Rect(
                    x=left + gap / 2, y=top + gap / 2, width=box, height=box,
                    fill=color, opacity=0.1 + 0.9 * level, radius=3 if cell >= 20 else 0,
                )
            )  # fmt: skip
            label = format_bytes(values[row, column])
            if text_width(label, 11) <= box:
                marks.append(
                    Text(
                        x=left + cell / 2, y=top + cell / 2 + 4, text=label, size=11,
                        anchor="middle", fill=cell_ink(color, 0.1 + 0.9 * level),
                    )
                )  # fmt: skip
        return marks

    def _names(self, x: float) -> list[Mark]:
        """Rank numbers left of the first heat map's rows and above each one's columns."""
        every = max(1, math.ceil(16 / self.cell))
        every = next(step for step in (1, 2, 4, 8, 16, 32, 64, 128) if step >= every)
        marks: list[Mark] = []
        for rank in range(0, self.world_size, every):
            middle = (rank + 0.5) * self.cell
            marks.append(Text(x=x + middle, y=TOP - 7, text=str(rank), size=11, anchor="middle"))
            if x == self.left:
                label = f"rank {rank}" if self.cell >= 12 or every > 1 else str(rank)
                marks.append(Text(x=x - 8, y=TOP + middle + 4, text=label, size=11, anchor="end"))
        return marks

    def _scale(self, max_bytes: float) -> list[Mark]:
        """The legend of the cells' opacity."""
        y = TOP + self.side + 30
        color = MEASURED
        marks: list[Mark] = [Text(x=self.left, y=y + 9, text="0", size=11, fill="muted")]
        steps = 6
        for step in range(steps):
            level = (step + 1) / steps
            marks.append(
                Rect(
                    x=self.left + 14 + step * 16, y=y, width=16, height=10,
                    fill=color, opacity=0.1 + 0.9 * level,
                )
            )  # fmt: skip
        x = self.left + 14 + steps * 16 + 8
        marks.append(
            Text(x=x, y=y + 9, text=f"{format_bytes(max_bytes)} per pair", size=11, fill="muted")
        )
        return marks

    def _bars(self, sent: Matrix, predicted: Matrix | None) -> list[Mark]:
        """sent, predicted: [N]. Rows continue those of the heat map."""
        x, cell = self.bars_x, self.cell
        max_bytes = max(
            1.0, float(sent.max()), 0.0 if predicted is None else float(predicted.max())
        )
        bottom = TOP + self.side
        marks: list[Mark] = [Text(x=x, y=12, text="sent by each rank", size=12, fill="muted")]
        for tick in byte_ticks(max_bytes, int(self.bars_width / 72)):
            at = x + tick / max_bytes * self.bars_width
            marks.append(line(at, TOP - 4, at, bottom + 4, opacity=0.5))
            label = format_bytes(tick) if tick else "0"
            marks.append(
                Text(x=at, y=bottom + 18, text=label, size=11, anchor="middle", fill="muted")
            )
        side_by_side = predicted is not None and cell >= 22
        thickness = min(18.0, cell * (0.34 if side_by_side else 0.62)) if cell >= 8 else cell - 1
        for rank in range(self.world_size):
            middle = TOP + (rank + 0.5) * cell
            rows = [(float(sent[rank]), MEASURED, middle - thickness / 2)]
            if predicted is not None and side_by_side:
                rows = [
                    (float(predicted[rank]), PREDICTED, middle - thickness - 1),
                    (float(sent[rank]), MEASURED, middle + 1),
                ]
            for value, color, top in rows:
                length = value / max_bytes * self.bars_width
                marks.append(
                    Rect(
                        x=x, y=top, width=length, height=thickness, fill=color,
                        radius=2 if thickness > 6 else 0,
                    )
                )  # fmt: skip
                if thickness >= 7.5:
                    marks.append(
                        Text(
                            x=x + length + 6, y=top + thickness / 2 + 4,
                            text=format_bytes(value), size=11,
                        )
                    )  # fmt: skip
            if predicted is not None and not side_by_side:
                at = x + float(predicted[rank]) / max_bytes * self.bars_width
                marks.append(
                    Rect(x=at - 1.5, y=middle - cell / 2, width=3, height=cell, fill=PREDICTED)
                )
        return marks + self._legend(predicted is not None)

    def _legend(self, with_prediction: bool) -> list[Mark]:
        y = TOP + self.side + 30
        entries: Sequence[tuple[str, str]] = [(MEASURED, "measured")]
        if with_prediction:
            entries = [(PREDICTED, "predicted"), *entries]
        marks: list[Mark] = []
        x = self.bars_x
        for color, label in entries:
            marks.append(Rect(x=x, y=y, width=10, height=10, fill=color, radius=2))
            marks.append(Text(x=x + 16, y=y + 9, text=label, size=11, fill="muted"))
            x += 100
        return marks


def byte_ticks(max_bytes: float, count: int) -> list[float]:
    """Round byte counts from 0 to ``max_bytes``, at most ``count`` steps of a power of two."""
    step = 2.0 ** max(0, math.ceil(math.log2(max(max_bytes, 1.0) / max(count, 1))))
    return [index * step for index in range(int(max_bytes / step) + 1)]
