"""The shard map: which rank holds which slice of which tensor, for each of the flat buffers.

The elements of the model are on the horizontal axis, tensor after tensor; each rank is a row. What
a rank holds is colored by tensor, the rest is empty. If there are too many ranks, a row stands for
several and shows what any of them holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import traitlets

from shardlab import shards
from shardlab.display.palette import PARTS, WAIT, ink_on
from shardlab.shards import BUFFERS, Layout
from shardlab.shards.formula import element_bytes
from shardlab.shards.layout import EVERY_RANK, PADDING
from shardlab.widgets.picture import Picture, module
from shardlab.widgets.prediction import Prediction
from shardlab.widgets.scene import Mark, Path, Rect, Text, text_width, to_svg
from shardlab.widgets.units import format_bytes, format_count

WIDTH = 800.0
LEFT = 64.0  # of the rows; rank names are to the left
RIGHT = 790.0
TOP = 22.0  # height of the names of the model's parts
HEADING = 22.0  # height of the heading above each panel
MAX_ROW_HEIGHT = 40.0
MIN_ROW_HEIGHT = 3.0
Spans = list[tuple[int, int, int]]  # (from, to, tensor), in elements of the flat buffer
WORLD_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class ShardMap(Picture):
    """Ranks × flat buffers. Made by `shard_map`.

    ``settings`` follows the controls and may be set: view (a title), stage and worldSize; the last
    two apply to a layout from a formula.
    """

    _esm: ClassVar[str] = module(
        "shard_formula.js", "shard_map_layout.js", "shard_map_drawing.js", "shard_map.js"
    )
    settings = traitlets.Dict().tag(sync=True)

    def __init__(self, views: Mapping[str, Layout]) -> None:
        self._views = dict(views)
        first_title, first = next(iter(self._views.items()))
        max_ranks = max(layout.world_size for layout in self._views.values())
        self._panel = max(56.0, min(26.0 * max_ranks, 156.0))
        self._height = TOP + len(BUFFERS) * (HEADING + self._panel + 8) + 8
        scene = {
            "width": WIDTH,
            "height": self._height,
            "left": LEFT,
            "right": RIGHT,
            "top": TOP,
            "heading": HEADING,
            "panel": self._panel,
            "max_row_height": MAX_ROW_HEIGHT,
            "min_row_height": MIN_ROW_HEIGHT,
            "colors": [[color, ink_on(color)] for color in PARTS],
            "padding_color": WAIT,
            "world_sizes": sorted({*WORLD_SIZES, first.world_size}),
            "views": [_for_browser(title, layout) for title, layout in self._views.items()],
        }
        settings = {"view": first_title, "stage": first.stage, "worldSize": first.world_size}
        super().__init__(scene=scene, settings=settings)

    @traitlets.validate("settings")
    def _validate(self, proposal: dict[str, Any]) -> dict[str, Any]:
        settings = dict(proposal["value"])
        try:
            self._layout_of(settings)
        except (KeyError, ValueError) as wrong:
            raise traitlets.TraitError(f"settings: {wrong}") from wrong
        return settings

    @property
    def layout_shown(self) -> Layout:
        """The layout with the current settings."""
        return self._layout_of(self.settings)

    def _layout_of(self, settings: Mapping[str, Any]) -> Layout:
        layout = self._views[settings["view"]]
        stage, world_size = settings["stage"], settings["worldSize"]
        if layout.recipe is None or (stage, world_size) == (layout.stage, layout.world_size):
            return layout
        recipe = dict(layout.recipe)
        shapes = recipe.pop("shapes")
        names = [name for name, _ in layout.tensors]
        named = dict(zip(names, shapes, strict=True))
        return shards.flat(named, world_size, stage=stage, **recipe)

    def summary(self) -> str:
        layout = self.layout_shown
        elements = format_count(sum(numel for _, numel in layout.tensors))
        held = [f"{buffer} {_held(layout, buffer)}" for buffer in BUFFERS]
        ranks = "1 rank" if layout.world_size == 1 else f"{layout.world_size} ranks"
        tensors = f"{len(layout.tensors)} tensors, {elements} elements"
        return f"{layout.source}; {tensors} on {ranks}: {'; '.join(held)}"

    def static_svg(self) -> str:
        layout = self.layout_shown
        ranks = "1 rank" if layout.world_size == 1 else f"{layout.world_size} ranks"
        return to_svg(
            Geometry(layout, self._panel).marks(),
            WIDTH,
            self._height,
            title=f"What each rank holds · {layout.source}",
            subtitle=f"{len(layout.tensors)} tensors, {ranks}",
            footer=self.summary(),
        )


def shard_map(
    layout: Any,
    *,
    world_size: int | None = None,
    stage: int | None = None,
    predicted: Prediction | None = None,
    **formula: Any,
) -> ShardMap:
    """Draw which rank holds which slice of which tensor.

    layout: one of
        the result of `shards.flat` or `shards.gather`;
        ``run.outputs`` of a run whose ranks returned `shards.of_deepspeed` or `shards.of_fsdp2`;
        {title: any of these}, to choose from;
        a module, or a mapping of names to element counts or shapes: drawn by formula, for
        ``world_size`` ranks at ``stage``, with any other argument of `shards.flat`.

    A layout from a formula has buttons for the stage and a slider for the ranks.

    predicted: a `predict` whose answer the map shows: a live map is hidden until there is a guess.

    Raises ValueError or TypeError for anything else.
    """
    picture = _map_of(layout, world_size, stage, formula)
    if predicted is not None:
        picture.prediction = predicted
        predicted.observe(picture.refresh, "value")
    return picture


def _map_of(
    layout: Any, world_size: int | None, stage: int | None, formula: dict[str, Any]
) -> ShardMap:
    if world_size is not None or stage is not None or formula or hasattr(layout, "parameters"):
        layout = shards.flat(layout, world_size or 4, stage=stage or 0, **formula)
    if isinstance(layout, Mapping) and "held" not in layout:
        if not layout:
            raise ValueError("no layout to draw")
        if all(isinstance(value, int) for value in layout.values()):
            raise TypeError("sizes alone are not a layout: pass world_size=… and stage=… as well")
        return ShardMap({str(title): _as_layout(each) for title, each in layout.items()})
    return ShardMap({"": _as_layout(layout)})


def _as_layout(given: Any) -> Layout:
    if isinstance(given, Layout):
        return given
    if isinstance(given, Sequence):
        return shards.gather(given)
    raise TypeError(
        f"a {type(given).__name__} is not a layout: pass shards.flat(…), "
        "shards.gather(run.outputs), or run.outputs"
    )


def _for_browser(title: str, layout: Layout) -> dict[str, Any]:
    data: dict[str, Any] = {
        "title": title,
        "source": layout.source,
        "world_size": layout.world_size,
        "stage": layout.stage,
        "tensors": [list(tensor) for tensor in layout.tensors],
        "length": layout.length,
        "recipe": None,
        "segments": None,
    }
    if layout.recipe is None:
        data["segments"] = {name: list(map(list, parts)) for name, parts in layout.segments.items()}
    else:
        sizes = element_bytes(layout.recipe["precision"], layout.recipe["optimizer"])
        shapes = [list(shape) for shape in layout.recipe["shapes"]]
        data["recipe"] = {
            "shapes": shapes,
            "cut": layout.recipe["cut"],
            "alignment": layout.recipe["alignment"],
            "element_bytes": sizes,
        }
    return data


def _held(layout: Layout, buffer: str) -> str:
    """``1.0 MiB on each rank``, or the range."""
    sizes = layout.bytes_by_rank(buffer)
    smallest, largest = min(sizes), max(sizes)
    if not largest:
        return "none"
    if format_bytes(smallest) == format_bytes(largest):
        return f"{format_bytes(largest)} on each rank"
    return f"{format_bytes(smallest)} to {format_bytes(largest)} per rank"


class Geometry:
    """Positions of rows and spans. ``shard_map.js`` computes the same for the live picture."""

    def __init__(self, layout: Layout, panel: float) -> None:
        self.layout = layout
        self.panel = panel
        n = layout.world_size
        self.ranks_per_row = max(1, math.ceil(n * MIN_ROW_HEIGHT / panel))
        self.rows = math.ceil(n / self.ranks_per_row)
        self.row = min(MAX_ROW_HEIGHT, panel / self.rows)
        self.gap = 2.0 if self.row >= 8 else 1.0 if self.row >= 5 else 0.0
        self.scale = (RIGHT - LEFT) / max(layout.length, 1)

    def top(self, buffer: str) -> float:
        return TOP + HEADING + BUFFERS.index(buffer) * (HEADING + self.panel + 8)

    def x(self, at: float) -> float:
        return LEFT + at * self.scale

    def spans(self, buffer: str) -> tuple[list[Spans], Spans]:
        """What any of each row's ranks holds, and what every rank holds."""
        rows: list[Spans] = [[] for _ in range(self.rows)]
        everywhere: Spans = []
        for part in self.layout.segments[buffer]:
            row = everywhere if part.rank == EVERY_RANK else rows[part.rank // self.ranks_per_row]
            end = part.at + part.numel
            if row and row[-1][2] == part.tensor and part.at <= row[-1][1]:
                row[-1] = (row[-1][0], max(row[-1][1], end), part.tensor)
            else:
                row.append((part.at, end, part.tensor))
        return rows, everywhere

    def all_spans(self, buffer: str) -> list[Spans]:
        """All spans that any rank of a row holds, by row."""
        rows, everywhere = self.spans(buffer)
        return [sorted([*row, *everywhere]) for row in rows]

    def marks(self) -> list[Mark]:
        marks = self._part_names()
        for buffer in BUFFERS:
            top = self.top(buffer)
            words = f"{buffer} · {_held(self.layout, buffer)}"
            marks.append(Text(x=LEFT, y=top - 7, text=words, size=12, weight=600))
            height = self.rows * self.row
            marks.append(
                Rect(x=LEFT, y=top, width=RIGHT - LEFT, height=height, fill="text", opacity=0.06)
            )
            marks += self._rank_names(top)
            paths: dict[tuple[str, bool], list[str]] = {}
            labels: list[Mark] = []
            for y, thick, spans in self._lines(buffer, top):
                for start, stop, tensor in spans:
                    x0, x1 = self.box(start, stop)
                    look = (WAIT, True) if tensor == PADDING else (color_of(tensor), False)
                    d = f"M{x0:.5g} {y:.5g}h{x1 - x0:.4g}v{thick:.4g}h{x0 - x1:.4g}z"
                    paths.setdefault(look, []).append(d)
                    labels += self._label(tensor, x0, x1, y + thick / 2 + 4)
            for (color, hatched), parts in paths.items():
                marks.append(Path(d="".join(parts), fill=color, hatch=hatched))
            marks += labels
        return marks

    def _lines(self, buffer: str, top: float) -> Iterator[tuple[float, float, Spans]]:
        """(y, height, spans) of each row; without gaps, shared spans once for all rows."""
        rows, everywhere = self.spans(buffer)
        for row, spans in enumerate(rows):
            row_spans = [*spans, *everywhere] if self.gap else spans
            yield top + row * self.row + self.gap / 2, self.row - self.gap, row_spans
        if not self.gap:
            yield top, self.rows * self.row, everywhere

    def box(self, start: float, stop: float) -> tuple[float, float]:
        """Edges in pixels. Anything thinner than a pixel fills the pixel in which it starts."""
        x0, x1 = self.x(start), self.x(stop)
        if x1 - x0 >= 1:
            return x0, x1
        x0 = min(math.floor(x0), RIGHT - 1)
        return x0, x0 + 1

    def _label(self, tensor: int, x0: float, x1: float, y: float) -> list[Mark]:
        if self.row < 15:
            return []
        name = "padding" if tensor == PADDING else name_in_layer(self.layout.tensors[tensor][0])
        text = fitting_name(name, x1 - x0 - 8)
        fill = "text" if tensor == PADDING else ink_on(color_of(tensor))
        middle = (x0 + x1) / 2
        return [Text(x=middle, y=y, text=text, size=11, anchor="middle", fill=fill)] if text else []

    def _part_names(self) -> list[Mark]:
        """The model's parts, at the top: shard boundaries do not follow them."""
        marks: list[Mark] = []
        for name, (start, stop) in self.model_parts().items():
            x0, x1 = self.x(start), self.x(stop)
            marks.append(
                Rect(x=x0 + 0.5, y=17, width=max(x1 - x0 - 1, 0.5), height=2, fill="muted")
            )
            text = fitting_name(name, x1 - x0 - 6)
            if text:
                x = (x0 + x1) / 2
                marks.append(Text(x=x, y=12, text=text, size=11, anchor="middle", fill="muted"))
        return marks

    def model_parts(self) -> dict[str, tuple[int, int]]:
        """Where each layer of the model begins and ends on the flat buffer."""
        found: dict[str, tuple[int, int]] = {}
        for tensor, (start, stop) in sorted(self.extents().items()):
            name = part_of(self.layout.tensors[tensor][0])
            low, high = found.get(name, (start, stop))
            found[name] = (min(low, start), max(high, stop))
        return found

    def extents(self) -> dict[int, tuple[int, int]]:
        """Where each tensor begins and ends on the flat buffer."""
        found: dict[int, tuple[int, int]] = {}
        for buffer in BUFFERS:
            for part in self.layout.segments[buffer]:
                if part.tensor != PADDING:
                    start, stop = found.get(part.tensor, (part.at, part.at))
                    end = part.at + part.numel
                    found[part.tensor] = (min(start, part.at), max(stop, end))
        return found

    def _rank_names(self, top: float) -> list[Mark]:
        every = max(1, math.ceil(13 / self.row))
        marks: list[Mark] = []
        for row in range(0, self.rows, every):
            y = top + (row + 0.5) * self.row + 4
            marks.append(
                Text(
                    x=LEFT - 8, y=y, text=f"rank {row * self.ranks_per_row}", size=11, anchor="end"
                )
            )
        return marks


def color_of(tensor: int) -> str:
    return PARTS[tensor % len(PARTS)]


def part_of(name: str) -> str:
    """The layer that a tensor belongs to: "blocks.3" of "blocks.3.mlp.up.weight"."""
    parts = name.split(".")
    depth = next((i + 1 for i, part in enumerate(parts) if part.isdigit()), 1)
    return ".".join(parts[:depth])


def name_in_layer(name: str) -> str:
    """ "mlp.up.weight" of "blocks.3.mlp.up.weight": the layer's name is at the top."""
    layer = part_of(name)
    return name.removeprefix(f"{layer}.") if layer[-1].isdigit() and name != layer else name


def fitting_name(name: str, room: float) -> str:
    """As many of a dotted name's last parts as fit: "mlp.up" of "blocks.3.mlp.up.weight"."""
    parts = name.removesuffix(".weight").split(".")
    min_parts = 2 if parts[-1] == "bias" and len(parts) > 1 else 1  # "bias" alone is ambiguous
    for first in range(len(parts) - min_parts + 1):
        text = ".".join(parts[first:])
        if text_width(text, 11) <= room:
            return text
    return ""
