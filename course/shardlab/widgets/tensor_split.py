"""The tensor split: a layer's matrices, which rank has which part, and what is sent at each step.

The upper row is the forward pass, the lower one the gradients of backward. A part in a rank's
color is on that rank only; gray is on all ranks; stacked sheets are partial sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from shardlab.display.palette import MEASURED, PREDICTED, ink_on, op_color, rank_color
from shardlab.run import Run
from shardlab.widgets.picture import Adjustable, module
from shardlab.widgets.scene import as_json, to_svg
from shardlab.widgets.tensor_split_marks import (
    BARS,
    BARS_LEFT,
    BARS_RIGHT,
    HEIGHT,
    PILL_OFFSET,
    ROW_CENTERS,
    WIDTH,
    Measured,
    background,
    bars_of,
    boxes_of,
    marks_of,
    signs_of,
)
from shardlab.widgets.tensor_split_model import CUTS, HIDDEN_FACTOR, RING_FACTOR, Cut, step_bytes
from shardlab.widgets.units import format_bytes, format_count

RANKS = (1, 2, 3, 4, 6, 8)
SMALL_PRINT = (
    "Color: only that rank has it. Gray: all ranks have it. Stacked sheets: each rank has a "
    "partial sum. Not to scale."
)
ON_GLOO = " gloo runs reduce-scatter as an all-reduce: twice the bytes."


class TensorSplit(Adjustable):
    """A layer split across ranks. Made by `tensor_split`.

    ``settings`` follows the controls and may be set: cut, ranks, tokens, width, step.
    """

    _esm: ClassVar[str] = module(
        "player.js", "tensor_split_marks.js", "tensor_split_parts.js", "tensor_split.js"
    )

    def __init__(self, settings: dict[str, Any], measured: Measured | None) -> None:
        self._given = {**settings, "step": 0}
        self._measured = measured
        scene = {
            "width": WIDTH,
            "height": HEIGHT,
            "cuts": [_for_browser(name, cut) for name, cut in CUTS.items()],
            "hidden_factor": HIDDEN_FACTOR,
            "ring_factor": RING_FACTOR,
            "ranks": sorted({*RANKS, settings["ranks"]}),
            "tokens": _values(settings["tokens"], 64, 2**17),
            "widths": _values(settings["width"], 16, 2**15),
            "colors": [[rank_color(r), ink_on(rank_color(r))] for r in range(max(RANKS) + 8)],
            "ops": {op: [op_color(op), ink_on(op_color(op))] for op in RING_FACTOR},
            "roles": {"predicted": PREDICTED, "measured": MEASURED},
            "bars": [BARS, BARS_LEFT, BARS_RIGHT],
            "row_centers": list(ROW_CENTERS),
            "pill_offset": PILL_OFFSET,
            "background": as_json(background()),
            "small": SMALL_PRINT,
            "on_gloo": ON_GLOO,
            "given": self._given,
            "measured": measured and list(measured),
        }
        super().__init__(scene=scene, settings=settings)

    def check(self, settings: dict[str, Any]) -> None:
        check_settings(settings)

    @property
    def measured(self) -> Measured | None:
        """The measurement, if the settings are those of the run."""
        return self._measured if {**self.settings, "step": 0} == self._given else None

    def static_svg(self) -> str:
        """The picture after the last step."""
        settings = self.settings | {"step": len(CUTS[self.settings["cut"]].steps) - 1}
        return to_svg(
            [*background(), *marks_of(settings), *bars_of(settings, self.measured)],
            WIDTH,
            HEIGHT,
            title=f"Tensor split: {CUTS[settings['cut']].title}",
            subtitle=_sizes(settings),
            footer=f"{self.summary()}. {SMALL_PRINT}{ON_GLOO if _doubles_bytes(settings) else ''}",
        )

    def summary(self) -> str:
        settings = self.settings
        cut = CUTS[settings["cut"]]
        sends = [
            f"{step.op.replace('_', '-')} of {next(iter(step.layouts))} "
            f"{format_bytes(step_bytes(step, settings))}"
            for step in cut.steps
            if step.op
        ]
        return f"{cut.title}, {_sizes(settings)}; each rank sends: {', '.join(sends)}"


def tensor_split(
    cut: str = "mlp",
    *,
    tokens: int = 512,
    width: int = 96,
    world_size: int = 4,
    element_bytes: int = 4,
    reduce_scatter: str = "ring",
    measured: Run | None = None,
) -> TensorSplit:
    """Draw how one layer is split across ranks, and what they send in forward and backward.

    cut: "columns" or "rows", one product X·W; "mlp", X·W₁ by columns, then H·W₂ by rows;
      "sequence", the same with X and Y split by tokens.
    tokens, width: T and D; the hidden width is 4D.
    reduce_scatter: "ring", or "gloo", which runs it as an all-reduce.
    measured: a run that marked its passes with measure("forward") and measure("backward").

    Raises ValueError for impossible settings.
    """
    if reduce_scatter not in ("ring", "gloo"):
        raise ValueError(f"reduce_scatter={reduce_scatter!r}: must be one of ring, gloo")
    settings = {
        "cut": cut,
        "tokens": tokens,
        "width": width,
        "ranks": world_size,
        "element_bytes": element_bytes,
        "gloo": reduce_scatter == "gloo",
        "step": 0,
    }
    check_settings(settings)
    sent = None
    if measured is not None:
        known = [label for label in ("forward", "backward") if label in measured.traffic]
        if len(known) < 2:
            raise ValueError('the run has no measure("forward") and measure("backward")')
        forward, backward = (float(measured.traffic[label].sent_by_rank.mean()) for label in known)
        sent = (forward, backward)
    return TensorSplit(settings, sent)


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raises ValueError for impossible settings."""
    if settings["cut"] not in CUTS:
        raise ValueError(f"cut={settings['cut']!r}: must be one of {', '.join(CUTS)}")
    if not 1 <= settings["ranks"] <= max(RANKS) + 8:
        raise ValueError(f"world_size={settings['ranks']}: must be 1 to 16")
    for name in ("tokens", "width", "element_bytes"):
        if settings[name] < 1:
            raise ValueError(f"{name}={settings[name]}: must be 1 or more")
    last = len(CUTS[settings["cut"]].steps) - 1
    if not 0 <= settings["step"] <= last:
        raise ValueError(f"step={settings['step']}: must be 0 to {last}")


def _doubles_bytes(settings: Mapping[str, Any]) -> bool:
    return settings["gloo"] and settings["cut"] == "sequence"


def _sizes(settings: Mapping[str, Any]) -> str:
    ranks = f"{settings['ranks']} rank{'s' * (settings['ranks'] != 1)}"
    return f"T = {format_count(settings['tokens'])}, D = {format_count(settings['width'])}, {ranks}"


def _values(given: int, smallest: int, largest: int) -> list[int]:
    """A slider's values: powers of two, midpoints between them, and the one that was given."""
    found, power = {given}, smallest
    while power <= largest:
        found |= {power, power * 3 // 2}
        power *= 2
    return sorted(found)


def _for_browser(name: str, cut: Cut) -> dict[str, Any]:
    return {
        "name": name,
        "title": cut.title,
        "matrices": [[matrix, *sides] for matrix, sides in cut.matrices.items()],
        "boxes": {matrix: list(box) for matrix, box in boxes_of(cut).items()},
        "signs": as_json(signs_of(cut, boxes_of(cut))),
        "steps": [
            {
                "text": step.text,
                "layouts": cut.layouts_after(index),
                "backward": step.backward,
                "op": step.op,
                "matrix": next(iter(step.layouts)),
            }
            for index, step in enumerate(cut.steps)
        ],
    }
