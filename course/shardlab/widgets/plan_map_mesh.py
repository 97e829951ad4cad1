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

    def marks(self, left: float, top: float) -> list[Mark]:
        """In a box of 214 × 230."""
        degrees = {
            "data": self.data,
            "tensor": self.tensor,
            "pipeline": self.pipeline,
            "context": self.context,
        }
        marks: list[Mark] = []
        used = [(name, degree) for name, degree in degrees.items() if degree > 1]
        for at, (name, degree) in enumerate(used):
            x, y = left + 107 * (at % 2), top + 12 + 16 * (at // 2)
            marks.append(Rect(x=x, y=y - 9, width=10, height=10, radius=2, fill=AXES[name]))
            marks.append(Text(x=x + 15, y=y, text=f"{name} {degree:,}", size=12))
        if not used:
            marks.append(Text(x=left, y=top + 12, text="one device", size=12))
        replica, bottom = self._replica(left + 18, top + 62)
        for row, words in enumerate(self.words()):
            y = bottom + 22 + 15 * row
            marks.append(Text(x=left, y=y, text=words, size=11, fill="muted"))
        return marks + replica

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
            return "" if group % node else "Dashed: nodes."
        if group * self.data >= node:
            return "" if node % group else f"A node: this stage of {node // group} replicas."
        stages = node // (group * self.data)
        return "" if node % (group * self.data) else f"A node: {stages} stages of all replicas."

    def _replica(self, left: float, top: float) -> tuple[list[Mark], float]:
        """Its marks and where they end."""
        groups = max(1, min(self.context, MOST_COLUMNS // self.tensor))
        rows = min(self.pipeline, MOST_ROWS)
        room = ROW_WIDTH - GAP * (groups - 1) - (14 if groups < self.context else 0)
        size = min(16.0, room / (groups * self.tensor), ROWS_HEIGHT / (rows + 0.2))
        group_width = size * self.tensor + GAP
        width, height = groups * group_width - GAP, size * rows
        marks: list[Mark] = []
        for copy in range(min(self.data, 4) - 1, 0, -1):
            x, y = left + 5 * copy, top - 5 * copy
            marks.append(
                Rect(
                    x=x - 4, y=y - 4, width=width + 8, height=height + 8, radius=3,
                    fill="surface", stroke=AXES["data"], stroke_width=1.5,
                )
            )  # fmt: skip
        outline = AXES["data"] if self.data > 1 else "rule"
        marks.append(
            Rect(
                x=left - 4, y=top - 4, width=width + 8, height=height + 8, radius=3,
                fill="surface", stroke=outline, stroke_width=1.5,
            )
        )  # fmt: skip
        starts = [left + group * group_width for group in range(groups)]
        block = group_width - GAP
        d = "".join(f"M{x:.1f} {top:.1f}h{block:.1f}v{height:.1f}h-{block:.1f}z" for x in starts)
        marks.append(Path(d=d, fill=AXES["tensor"] if self.tensor > 1 else WAIT))
        d = "".join(
            f"M{x + size * rank:.1f} {top:.1f}v{height:.1f}"
            for x in starts
            for rank in range(1, self.tensor)
        )
        d += "".join(f"M{left:.1f} {top + size * row:.1f}h{width:.1f}" for row in range(1, rows))
        marks.append(Path(d=d, stroke="surface", stroke_width=1.5))
        bottom = top + height + 9
        if self.context > 1:
            d = "".join(f"M{x:.1f} {bottom:.1f}h{block:.1f}" for x in starts)
            marks.append(Path(d=d, stroke=AXES["context"], stroke_width=3))
            if groups < self.context:
                marks.append(Text(x=left + width + 6, y=bottom + 2, text="…", size=12))
        if self.pipeline > 1:
            x = left - 10
            d = f"M{x} {top}V{top + height - 4:.1f}m-3 -4l3 4l3 -4"
            marks.append(Path(d=d, stroke=AXES["pipeline"], stroke_width=2))
            if rows < self.pipeline:
                marks.append(Text(x=x - 4, y=top + height + 10, text="⋮", size=12))
        return marks + self._nodes(left, top, size, group_width, rows, groups), bottom

    def _nodes(
        self, left: float, top: float, size: float, group_width: float, rows: int, groups: int
    ) -> list[Mark]:
        """Borders between nodes, where a stage of a replica fills one or several."""
        group, node = self.tensor * self.context, self.per_node
        if group % node or group * self.pipeline * self.data <= node or node % self.tensor:
            return []
        each = node // self.tensor  # tensor-parallel groups
        d = "".join(
            f"M{left + start * group_width - 2:.1f} {top + size * row - 1.2:.1f}"
            f"h{(min(start + each, groups) - start) * group_width - GAP + 2.5:.1f}"
            f"v{size + 0.4:.1f}h-{(min(start + each, groups) - start) * group_width - GAP + 2.5:.1f}z"
            for row in range(rows)
            for start in range(0, groups, each)
        )
        return [Path(d=d, stroke="text", dash="3 2")]
