"""A layout's mesh: the ranks of one replica, a row for each pipeline stage, and how many replicas.

Ranks are in the order of shardlab.plan.layouts: tensor, context, data, pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardlab.display.palette import AXES, WAIT
from shardlab.widgets.scene import Mark, Path, Rect, Text

MOST_ROWS, MOST_COLUMNS = 10, 16  # that are drawn
ROW_WIDTH, ROWS_HEIGHT = 172.0, 124.0  # room for them
GAP = 5.0  # between tensor-parallel groups


@dataclass(frozen=True)
class Mesh:
    data: int
    tensor: int
    pipeline: int
    context: int
    per_node: int
    expert: int = 1  # of the data · context ranks

    def marks(self, left: float, top: float) -> list[Mark]:
        """In a box of 214 × 230."""
        degrees = {
            "data": self.data,
            "tensor": self.tensor,
            "pipeline": self.pipeline,
            "context": self.context,
            "expert": self.expert,
        }
        marks: list[Mark] = []
        used = [(name, degree) for name, degree in degrees.items() if degree > 1]
        for at, (name, degree) in enumerate(used):
            x, y = left + 107 * (at % 2), top + 12 + 16 * (at // 2)
            marks.append(Rect(x=x, y=y - 9, width=10, height=10, radius=2, fill=AXES[name]))
            marks.append(Text(x=x + 15, y=y, text=f"{name} {degree:,}", size=12))
        if not used:
            marks.append(Text(x=left, y=top + 12, text="one device", size=12))
        grid = self._grid(left + 18, top + 66)
        marks += self._replicas(grid)
        marks += self._arrows(grid)
        for row, words in enumerate(self.words()):
            y = grid.top + grid.height + 31 + 15 * row
            marks.append(Text(x=left, y=y, text=words, size=11, fill="muted"))
        return marks + grid.nodes()

    def words(self) -> list[str]:
        """What is drawn, and what a node holds."""
        replica = self.tensor * self.context * self.pipeline
        drawn = "one device" if replica == 1 else f"{replica:,} devices"
        return [words for words in (f"A replica is {drawn}.", self._node()) if words]

    def _node(self) -> str:
        group, node = self.tensor * self.context, self.per_node
        if group * self.data * self.pipeline <= node:
            return "All are in one node."
        if group >= node:
            drawn = "Dashed: nodes." if self._grid(0, 0).node_groups else ""
            return "" if group % node else drawn or f"A row: {group // node} nodes."
        if group * self.data >= node:
            stage = "this stage of " if self.pipeline > 1 else ""
            return "" if node % group else f"A node: {stage}{node // group} replicas."
        stages = node // (group * self.data)
        return "" if node % (group * self.data) else f"A node: {stages} stages of all replicas."

    def _grid(self, left: float, top: float) -> Grid:
        groups = max(1, min(self.context, MOST_COLUMNS // self.tensor))
        rows = min(self.pipeline, MOST_ROWS)
        room = ROW_WIDTH - GAP * (groups - 1) - (14 if groups < self.context else 0)
        size = min(16.0, room / (groups * self.tensor), ROWS_HEIGHT / (rows + 0.2))
        group, node = self.tensor * self.context, self.per_node
        each = node // self.tensor
        is_drawn = group % node == 0 and node % self.tensor == 0 and each <= groups
        is_one = group * self.pipeline * self.data <= node
        node_groups = each if is_drawn and not is_one else 0
        return Grid(left, top, size, rows, groups, self.tensor, node_groups)

    def _replicas(self, grid: Grid) -> list[Mark]:
        """The first one, and the borders of some others behind it."""
        outline = AXES["data"] if self.data > 1 else "rule"
        color = AXES["tensor"] if self.tensor > 1 else WAIT
        copies = range(min(self.data, 4) - 1, -1, -1)
        return [*(grid.border(5.0 * copy, outline) for copy in copies), *grid.cells(color)]

    def _arrows(self, grid: Grid) -> list[Mark]:
        """Along the stages, and below the groups of context parallelism."""
        marks: list[Mark] = []
        end, below = grid.top + grid.height, grid.top + grid.height + 9
        if self.context > 1:
            d = "".join(f"M{x:.1f} {below:.1f}h{grid.block:.1f}" for x in grid.starts)
            marks.append(Path(d=d, stroke=AXES["context"], stroke_width=3))
            if grid.groups < self.context:
                x = grid.left + grid.width + 6
                marks.append(Text(x=x, y=below + 2, text="…", size=12))
        if self.pipeline > 1:
            x = grid.left - 10
            d = f"M{x} {grid.top}V{end - 4:.1f}m-3 -4l3 4l3 -4"
            marks.append(Path(d=d, stroke=AXES["pipeline"], stroke_width=2))
            if grid.rows < self.pipeline:
                marks.append(Text(x=x - 4, y=end + 10, text="⋮", size=12))
        return marks


@dataclass(frozen=True)
class Grid:
    """The ranks of one replica that are drawn: ``rows`` of ``groups`` of ``tensor`` squares."""

    left: float
    top: float
    size: float
    rows: int
    groups: int
    tensor: int
    node_groups: int  # in a node; 0: nodes are not drawn

    @property
    def block(self) -> float:
        """The width of a group."""
        return self.size * self.tensor

    @property
    def starts(self) -> list[float]:
        return [self.left + at * (self.block + GAP) for at in range(self.groups)]

    @property
    def width(self) -> float:
        return self.starts[-1] + self.block - self.left

    @property
    def height(self) -> float:
        return self.size * self.rows

    def border(self, shift: float, stroke: str) -> Mark:
        return Rect(
            x=self.left - 4 + shift, y=self.top - 4 - shift,
            width=self.width + 8, height=self.height + 8, radius=3,
            fill="surface", stroke=stroke, stroke_width=1.5,
        )  # fmt: skip

    def cells(self, fill: str) -> list[Mark]:
        """Two paths for all squares, since a scene has hundreds of meshes."""
        blocks = "".join(
            f"M{x:.1f} {self.top:.1f}h{self.block:.1f}v{self.height:.1f}h-{self.block:.1f}z"
            for x in self.starts
        )
        between = "".join(
            f"M{x + self.size * rank:.1f} {self.top:.1f}v{self.height:.1f}"
            for x in self.starts
            for rank in range(1, self.tensor)
        )
        between += "".join(
            f"M{self.left:.1f} {self.top + self.size * row:.1f}h{self.width:.1f}"
            for row in range(1, self.rows)
        )
        return [Path(d=blocks, fill=fill), Path(d=between, stroke="surface", stroke_width=1.5)]

    def nodes(self) -> list[Mark]:
        """Their borders, where a node holds one or several groups of a stage."""
        if not self.node_groups:
            return []
        width = self.node_groups * (self.block + GAP) - GAP + 2.5
        whole = self.groups - self.groups % self.node_groups
        d = "".join(
            f"M{x - 2:.1f} {self.top + self.size * row - 1.2:.1f}"
            f"h{width:.1f}v{self.size + 0.4:.1f}h-{width:.1f}z"
            for row in range(self.rows)
            for x in self.starts[: whole : self.node_groups]
        )
        return [Path(d=d, stroke="text", dash="3 2")]
