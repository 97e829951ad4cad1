"""Two bars below the scatter: where a layout's step goes, and what fills the fullest device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardlab.display.palette import AXES, MEMORY, PHASES, WAIT, WORK
from shardlab.widgets.scene import Mark, Path, Rect, Text

WIDTH = 700.0
COLUMNS, SLOT = 4, 175.0  # of the legend
BAR, ROW = 16.0, 15.0

# {name in the legend: (parts of shardlab.plan.step, color)}
STEP: dict[str, tuple[tuple[str, ...], str]] = {
    "products": (("products", "logits"), WORK["products"]),
    "memory-bound": (("memory-bound work",), WORK["memory-bound work"]),
    "overhead": (("overhead",), WORK["overhead"]),
    "tensor traffic": (("tensor parallelism",), AXES["tensor"]),
    "context traffic": (("context parallelism",), AXES["context"]),
    "expert traffic": (("expert parallelism",), AXES["expert"]),
    "pipeline traffic": (("pipeline traffic",), AXES["pipeline"]),
    "bubble": (("bubble",), WAIT),
    "data traffic": (("data parallelism",), AXES["data"]),
    "optimizer": (("optimizer",), PHASES["update"]),
}
STORED: dict[str, tuple[tuple[str, ...], str]] = {
    "parameters": (("parameters",), MEMORY["parameters"]),
    "gradients": (("gradients",), MEMORY["gradients"]),
    "optimizer": (("optimizer",), MEMORY["optimizer"]),
    "activations": (("activations",), MEMORY["activations"]),
    "recomputed layer": (("recomputed layer",), MEMORY["activations"]),
    "logits": (("embedding and logits",), MEMORY["other"]),
}
HATCHED = "recomputed layer"  # activations too, but of one layer at a time


@dataclass(frozen=True)
class Bar:
    """A bar at ``top``; ``names`` are those that some layout has, each with its place."""

    title: str
    top: float
    kinds: Mapping[str, tuple[tuple[str, ...], str]]
    write: Callable[[float], str]
    compare: tuple[str, float]  # a line in the bar: what, where
    names: list[str] = field(default_factory=list)

    @property
    def bottom(self) -> float:
        return self.top + 24 + BAR + ROW * -(-len(self.names) // COLUMNS)

    def item(self, values: Mapping[str, float]) -> dict[str, Any]:
        """One layout's: the whole as text, the x of the line, [start, width, text] by name."""
        sums = [sum(values.get(part, 0.0) for part in self.kinds[name][0]) for name in self.names]
        whole = sum(sums)
        scale = WIDTH / max(whole, self.compare[1])
        x, parts = 0.0, []
        for value in sums:
            parts.append([round(x, 1), round(value * scale, 1), self.write(value) if value else ""])
            x += value * scale
        return {
            "whole": self.write(whole),
            "line": round(self.compare[1] * scale, 1),
            "parts": parts,
        }

    def scene(self) -> dict[str, Any]:
        """What planMapBar in the browser needs to draw any layout's bar."""
        return {
            "title": self.title,
            "top": self.top,
            "compare": f"{self.compare[0]}: {self.write(self.compare[1])}",
            "names": self.names,
            "colors": [self.kinds[name][1] for name in self.names],
            "hatched": [name == HATCHED for name in self.names],
            "columns": COLUMNS,
            "slot": SLOT,
            "bar": BAR,
            "row": ROW,
        }

    def marks(self, item: Mapping[str, Any]) -> list[Mark]:
        """As planMapBar in plan_map.js."""
        y = self.top + 20
        written = f"{self.compare[0]}: {self.write(self.compare[1])}"
        marks: list[Mark] = [
            Text(x=0, y=self.top + 13, text=f"{self.title}: {item['whole']}", weight=600),
            Text(x=WIDTH, y=self.top + 13, text=written, size=11, anchor="end", fill="muted"),
        ]
        for at, (name, (start, width, text)) in enumerate(
            zip(self.names, item["parts"], strict=True)
        ):
            color, hatch = self.kinds[name][1], name == HATCHED
            marks.append(
                Rect(x=start, y=y, width=max(width - 1, 0), height=BAR, fill=color, hatch=hatch)
            )
            x, base = SLOT * (at % COLUMNS), y + BAR + ROW * (at // COLUMNS + 1)
            opacity = 1.0 if text else 0.45
            marks += [
                Rect(
                    x=x, y=base - 9, width=10, height=10, radius=2, fill=color, hatch=hatch,
                    opacity=opacity,
                ),
                Text(
                    x=x + 15, y=base, text=f"{name} {text}".strip(), size=11,
                    fill="text" if text else "muted",
                ),
            ]  # fmt: skip
        d = f"M{item['line']} {y - 4}V{y + BAR + 4}"
        return [*marks, Path(d=d, stroke="text", stroke_width=2, dash="4 3")]


def used(
    kinds: Mapping[str, tuple[Sequence[str], str]], values: Mapping[str, np.ndarray]
) -> list[str]:
    """The names of what at least one layout has."""
    return [
        name
        for name, (parts, _) in kinds.items()
        if any((values[part] > 0).any() for part in parts if part in values)
    ]
