"""Quantization grid: real weights in blocks, the values that codes stand for, and the error.

Each block has one fp32 scale, its largest absolute weight, and for each weight the code of the
nearest code point. Code points are multiples of the scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from shardlab.estimate.memory import FP32_BYTES
from shardlab.estimate.quantization import SCALE_BITS, nf4_code_points
from shardlab.widgets.picture import Adjustable, module
from shardlab.widgets.quantization_grid_marks import (
    BLOCK_BARS,
    HEIGHT,
    LEFT,
    LOOKS,
    OUTLIER_AT,
    SAMPLE,
    WIDTH,
    Floats,
    Quantized,
    marks_of,
    percent,
    quantize,
)
from shardlab.widgets.scene import to_svg
from shardlab.widgets.units import fixed, format_bytes

BITS, OUTLIERS = range(2, 9), range(21)
BLOCKS = [2**power for power in range(4, 13)]
SMALL_PRINT = (
    f"{SAMPLE:,} weights. Error: rms, in % of the rms of the weights without the outlier. int: "
    "evenly spaced code points, symmetric around 0."
)


class QuantizationGrid(Adjustable):
    """Made by `quantization_grid`.

    ``settings`` may be read and set: bits; codes, "int" or "nf4"; block, its number of weights;
    outlier, in units of the weights' rms, or 0 for none; weight, the one whose block is drawn.
    """

    _esm: ClassVar[str] = module("quantization_grid_marks.js", "quantization_grid.js")

    def __init__(self, weights: Floats, settings: dict[str, Any]) -> None:
        self._weights = weights
        scene = {
            "width": WIDTH,
            "height": HEIGHT,
            "left": LEFT,
            "block_bars": list(BLOCK_BARS),
            "looks": LOOKS,
            "weights": weights.tolist(),
            "nf4": nf4_code_points(),
            "scale_bits": SCALE_BITS,
            "fp32_bytes": FP32_BYTES,
            "outlier_at": OUTLIER_AT,
            "bits": list(BITS),
            "blocks": BLOCKS,
            "outliers": list(OUTLIERS),
            "small": SMALL_PRINT,
        }
        super().__init__(scene=scene, settings=settings)

    def check(self, settings: dict[str, Any]) -> None:
        check_settings(settings)

    @property
    def quantized(self) -> Quantized:
        return quantize(self._weights, self.settings)

    def static_svg(self) -> str:
        return to_svg(
            marks_of(self.quantized, self.settings),
            WIDTH,
            HEIGHT,
            title="Weights, code points and blocks",
            footer=f"{self.summary()}. {SMALL_PRINT}",
        )

    def summary(self) -> str:
        settings, found = self.settings, self.quantized
        codes = "NF4" if settings["codes"] == "nf4" else f"int{settings['bits']}"
        times = settings["outlier"]
        outlier = f"one outlier of {times:g}× the rms" if times else "no outlier"
        return (
            f"{codes}, blocks of {settings['block']:,}, {outlier}: "
            f"error {percent(found.error)}, {fixed(found.bits_per_weight, 2)} bits per weight, "
            f"{format_bytes(found.bytes)}"
        )


def quantization_grid(
    weights: Any, bits: int = 4, *, codes: str = "int", block: int = 64, outlier: float = 0
) -> QuantizationGrid:
    """Draw a sample of weights, the code points of one block, and every block's error.

    weights: a tensor or array; its first 4,096 elements are the sample.
    bits, codes: per weight; "int" or, with 4 bits, "nf4".
    block: the number of weights that share a scale, a power of two from 16 to 4,096.
    outlier: replaces one weight with this many times the rms of the sample; 0 keeps it.

    Raises ValueError for impossible settings, or weights that are too few or all 0.
    """
    sample = np.array(weights.flatten()[:SAMPLE].tolist())
    settings = {
        "bits": bits, "codes": codes, "block": block, "outlier": outlier, "weight": OUTLIER_AT,
    }  # fmt: skip
    if len(sample) < SAMPLE or not sample.any():
        raise ValueError(f"weights: needs {SAMPLE:,} elements, not all of them 0")
    check_settings(settings)
    return QuantizationGrid(sample, settings)


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raises ValueError for impossible settings."""
    bits, codes = settings["bits"], settings["codes"]
    if bits not in BITS:
        raise ValueError(f"bits={bits}: must be from {min(BITS)} to {max(BITS)}")
    if codes not in ("int", "nf4") or (codes == "nf4" and bits != 4):
        raise ValueError(f'codes={codes!r}, bits={bits}: must be "int", or "nf4" with 4 bits')
    if settings["block"] not in BLOCKS:
        raise ValueError(f"block={settings['block']}: must be one of {BLOCKS}")
    if not 0 <= settings["outlier"] <= max(OUTLIERS):
        raise ValueError(f"outlier={settings['outlier']}: must be from 0 to {max(OUTLIERS)}")
    if settings["weight"] not in range(SAMPLE):
        raise ValueError(f"weight={settings['weight']}: must be from 0 to {SAMPLE - 1}")
