"""Memory bars: predicted bytes on each rank's device by ZeRO stage, next to measured ones.

Sliders redraw in the browser, with the formula in ``memory_formula.js``; this file draws the same
picture as a static SVG. All numbers in a picture have the same unit: GB (1e9 bytes), as in the
paper's table, or GiB (2**30).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import traitlets
from numpy.typing import NDArray

from shardlab.display.palette import ERROR, MEMORY, PREDICTED, ink_on
from shardlab.estimate.memory import PRECISION_BYTES, STATE_BYTES, ModelStates, largest_model
from shardlab.run.live_memory import CATEGORIES
from shardlab.widgets.memory_rows import (
    LEFT,
    RIGHT,
    ROW,
    UNITS,
    WIDTH,
    MemoryBarsLayout,
    formula_keywords,
    opposite,
    states_at,
)
from shardlab.widgets.picture import Picture, module
from shardlab.widgets.scene import as_json, to_svg
from shardlab.widgets.units import format_count

OFFLOADS = ("none", "optimizer", "parameters", "both")
WORLD_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
FOOTER = (
    "Predicted: model states only, by the formulas of arXiv 1910.02054, section 5. Activations, "
    "buckets and padding are extra."
)


class MemoryBars(Picture):
    """Bytes by category on each rank. Made by `memory_bars`.

    ``settings`` follows the sliders and may be set: parameters, worldSize, stage, precision,
    optimizer, offload ("none", "optimizer", "parameters", "both"), unit ("GB", "GiB").
    """

    _esm: ClassVar[str] = module(
        "memory_formula.js", "memory_bars_rows.js", "memory_bars_words.js", "memory_bars.js"
    )
    settings = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        settings: dict[str, Any],
        capacity_bytes: float | None,
        measured: dict[str, NDArray[np.float64]] | None,
    ) -> None:
        self._layout = layout = MemoryBarsLayout(capacity_bytes, measured)
        worlds = sorted({*WORLD_SIZES, settings["worldSize"]})
        scene = {
            "width": WIDTH,
            "height": layout.height,
            "left": LEFT,
            "right": RIGHT,
            "row": ROW,
            "stages_y": layout.stages_y,
            "measured_y": layout.measured_y,
            "measured_row": layout.measured_row,
            "host_y": layout.host_y,
            "axis_y": layout.axis_y,
            "legend": as_json(layout.legend()),
            "capacity_bytes": capacity_bytes,
            "measured": [list(row.parts) for row in layout.measured_bars()],
            "measured_labels": [row.label for row in layout.measured_bars()],
            "colors": {name: [color, ink_on(color)] for name, color in MEMORY.items()},
            "predicted_color": PREDICTED,
            "error_color": ERROR,
            "costs": {
                "precision": {name: list(sizes) for name, sizes in PRECISION_BYTES.items()},
                "optimizer": STATE_BYTES,
            },
            "precisions": [
                name
                for name in PRECISION_BYTES
                if name != "fp32-master" or settings["precision"] == name
            ],
            "world_sizes": worlds,
            "footer": FOOTER,
        }
        super().__init__(scene=scene, settings=settings)

    @traitlets.validate("settings")
    def _validate(self, proposal: dict[str, Any]) -> dict[str, Any]:
        try:
            return _checked(dict(proposal["value"]))
        except (KeyError, ValueError) as wrong:
            raise traitlets.TraitError(f"settings: {wrong}") from wrong

    def states(self, stage: int | None = None) -> ModelStates:
        """Predicted bytes on each rank with the current settings, or at another stage."""
        return states_at(self.settings, self.settings["stage"] if stage is None else stage)

    def static_svg(self) -> str:
        return to_svg(
            self._layout.marks(self.settings),
            WIDTH,
            self._layout.height,
            title=f"Model states · {self._settings_text()}",
            subtitle="",
            footer=f"{self.summary()} {FOOTER}",
        )

    def summary(self) -> str:
        format_size = UNITS[self.settings["unit"]]
        total, other = self.states().device_bytes, opposite(self.settings["stage"])
        text = (
            f"Stage {self.settings['stage']}: {format_size(total)} on each rank's device, "
            f"stage {other}: {format_size(self.states(other).device_bytes)}"
        )
        capacity = self._layout.capacity_bytes
        if capacity is None:
            return text + "."
        if total > capacity:
            excess = format_size(total - capacity)
            return f"{text}. Does not fit: exceeds {format_size(capacity)} by {excess}."
        free = format_size(capacity - total)
        return f"{text}. Fits: {free} of {format_size(capacity)} left."

    def largest_model(self) -> int | None:
        """The largest number of parameters that fits; None if the device sets no limit."""
        capacity = self._layout.capacity_bytes
        if capacity is None:
            return None
        stage = self.settings["stage"]
        try:
            return largest_model(capacity, **formula_keywords(self.settings, stage))
        except ValueError:
            return None

    def _settings_text(self) -> str:
        s = self.settings
        ranks = "1 rank" if s["worldSize"] == 1 else f"{s['worldSize']} ranks"
        offload = "" if s["offload"] == "none" else f", offload: {s['offload']}"
        return (
            f"{format_count(s['parameters'])} parameters, {ranks}, {s['precision']}, "
            f"{s['optimizer']}{offload}"
        )


def memory_bars(
    parameters: float = 7.5e9,
    world_size: int = 64,
    stage: int = 0,
    precision: str = "bf16",
    optimizer: str = "adam",
    offload: str | bool | None = None,
    capacity_bytes: float | None = None,
    measured: Any = None,
    *,
    moment: str = "peak",
    unit: str | None = None,
) -> MemoryBars:
    """Draw the bytes of model states on each rank, at ZeRO stages 0 to 3, with sliders.

    offload: what is kept on the host: "optimizer", "parameters", "both", or None. Stage 0 shards
        nothing and offloads nothing; only stage 3 offloads parameters.
    capacity_bytes: of one device; draws a line and shows what fits.
    measured: a run with ``memory=True``, its ``run.memory``, or {category: bytes}, where bytes are
        one number or one for each rank. ``moment``: "peak", "end" or the name of a phase.
    unit: "GB" (1e9 bytes) or "GiB" (2**30); a button changes it. Without it, GiB next to measured
        bytes, else GB.

    Raises ValueError for arguments that the formula does not support.
    """
    if not isinstance(offload, str):
        offload = "optimizer" if offload else "none"
    settings = {
        "parameters": int(parameters) if parameters == parameters // 1 else float(parameters),
        "worldSize": int(world_size),
        "stage": int(stage),
        "precision": precision,
        "optimizer": optimizer,
        "offload": offload,
        "unit": unit or ("GB" if measured is None else "GiB"),
    }
    if capacity_bytes is not None:
        if not 0 < capacity_bytes < math.inf:
            raise ValueError(
                f"capacity_bytes={capacity_bytes}: must be above 0, or None for no line"
            )
        capacity_bytes = float(capacity_bytes)
    overlay = None if measured is None else measured_bytes(measured, moment)
    return MemoryBars(_checked(settings), capacity_bytes, overlay)


def measured_bytes(measured: Any, moment: str = "peak") -> dict[str, NDArray[np.float64]]:
    """{category: bytes [N]} from a run, its ``memory``, or a mapping of categories to bytes."""
    memory = getattr(measured, "memory", measured)
    found = memory if isinstance(memory, Mapping) else memory.at(moment)
    columns = {name: np.atleast_1d(np.asarray(size, float)) for name, size in found.items()}
    if unknown := sorted(set(columns) - set(CATEGORIES)):
        raise ValueError(f"measured: {unknown[0]!r} is not one of {', '.join(CATEGORIES)}")
    lengths = {len(column) for column in columns.values()}
    if not columns or len(lengths) > 1 or any(np.any(c < 0) for c in columns.values()):
        raise ValueError(
            "measured: pass bytes by category, 0 or more, for the same ranks in each category"
        )
    return {name: columns[name] for name in CATEGORIES if name in columns}


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    for name, known in (("offload", OFFLOADS), ("unit", tuple(UNITS))):
        if settings[name] not in known:
            raise ValueError(f"{name}={settings[name]!r}: must be one of {', '.join(known)}")
    states_at(settings, settings["stage"])
    if not settings["parameters"] > 0:
        raise ValueError(f"parameters={settings['parameters']}: must be above 0")
    return settings
