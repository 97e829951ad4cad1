"""The numbers and marks of the quantization grid. ``quantization_grid_marks.js`` has the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardlab.display.palette import MEASURED, MEMORY
from shardlab.estimate.memory import FP32_BYTES
from shardlab.estimate.quantization import SCALE_BITS, nf4_code_points
from shardlab.widgets.scene import Mark, Rect, Text
from shardlab.widgets.units import fixed, format_bytes

Floats = NDArray[np.float64]

SAMPLE = 4096  # weights
OUTLIER_AT = 2100  # index of the weight that becomes an outlier
WIDTH, HEIGHT = 660.0, 384.0
LEFT = 44.0  # the axis of the errors is to the left
BINS, HISTOGRAM = 88, (28.0, 132.0)  # y of the top and of the bottom
CODES = (136.0, 150.0)
BLOCK_BARS = (228.0, 288.0)
BITS_BAR, MAX_BITS = 344.0, 10.0  # 8 bits for the code and, in blocks of 16, 2 for the scale
LOOKS = {"weights": MEMORY["parameters"], "error": MEASURED}


@dataclass(frozen=True)
class Quantized:
    """Weights, in blocks, and what is stored for them: codes and scales."""

    weights: Floats  # [blocks, block]
    codes: NDArray[np.intp]  # [blocks, block], indices of points
    points: Floats  # from −1 to 1, in units of a block's scale
    scales: Floats  # [blocks]
    errors: Floats  # [blocks], rms of the error over rms of the sample
    bits_per_weight: float

    @property
    def error(self) -> float:
        return float(np.sqrt(np.mean(self.errors**2)))

    @property
    def bytes(self) -> float:
        return self.bits_per_weight * SAMPLE / 8


def code_points(bits: int, codes: str) -> Floats:
    """The code points, in increasing order from −1 to 1."""
    if codes == "nf4":
        return np.array(nf4_code_points())
    max_code = 2 ** (bits - 1) - 1
    return np.arange(-max_code, max_code + 1) / max_code


def quantize(sample: Floats, settings: Mapping[str, Any]) -> Quantized:
    """Round each weight to the nearest code point of its block."""
    rms = np.sqrt(np.mean(sample**2))
    weights = sample.copy()
    if settings["outlier"]:
        weights[OUTLIER_AT] = settings["outlier"] * rms
    weights = weights.reshape(-1, settings["block"])
    points = code_points(settings["bits"], settings["codes"])
    scales = np.abs(weights).max(axis=1)
    between = (points[1:] + points[:-1]) / 2
    normalized = weights / np.where(scales > 0, scales, 1)[:, None]
    codes = np.searchsorted(between, normalized)
    restored = points[codes] * scales[:, None]
    errors = np.sqrt(np.mean((restored - weights) ** 2, axis=1)) / rms
    bits_per_weight = settings["bits"] + SCALE_BITS / settings["block"]
    return Quantized(weights, codes, points, scales, errors, bits_per_weight)


def marks_of(found: Quantized, settings: Mapping[str, Any]) -> list[Mark]:
    """The marks, from top to bottom: histogram, code points, block errors, bits."""
    shown = settings["weight"] // settings["block"]
    limit = float(np.abs(found.weights).max())
    middle = (LEFT + WIDTH) / 2
    quarter = (WIDTH - LEFT) / 4
    labels = (
        (LEFT, "start", f"−{fixed(limit, 2)}"),
        (middle - quarter, "middle", f"−{fixed(limit / 2, 2)}"),
        (middle, "middle", "weight 0"),
        (middle + quarter, "middle", fixed(limit / 2, 2)),
        (WIDTH, "end", fixed(limit, 2)),
    )
    return [
        _title(14, f"Weights of block {shown + 1:,} of {len(found.scales):,}"),
        *_legend(),
        *_histogram(found.weights.ravel(), limit, "text", 0.16),
        *_histogram(found.weights[shown], limit, LOOKS["weights"], 1.0),
        *_code_marks(found, shown, limit),
        *(_small(x, 165, text, anchor) for x, anchor, text in labels),
        _small(
            LEFT, 182,
            "Ticks: the code points of this block. Faint: no weight of the block is rounded to it.",
        ),
        *_block_marks(found, shown),
        *_bit_marks(found, settings["bits"]),
    ]  # fmt: skip


def _title(y: float, text: str) -> Mark:
    return Text(x=LEFT, y=y, text=text, weight=600)


def _small(x: float, y: float, text: str, anchor: str = "start") -> Mark:
    return Text(x=x, y=y, text=text, size=11, anchor=anchor, fill="muted")


def _legend() -> list[Mark]:
    """The legend, to the right of the title."""
    return [
        Rect(x=330, y=5, width=10, height=10, fill=LOOKS["weights"]),
        _small(345, 14, "this block"),
        Rect(x=416, y=5, width=10, height=10, fill="text", opacity=0.16),
        _small(431, 14, "all weights (separate scale)"),
    ]


def _histogram(weights: Floats, limit: float, fill: str, opacity: float) -> list[Mark]:
    top, bottom = HISTOGRAM
    bins = np.minimum(np.floor((weights / limit + 1) / 2 * BINS), BINS - 1).astype(int)
    counts = np.bincount(bins, minlength=BINS)
    step = (WIDTH - LEFT) / BINS
    heights = counts / counts.max() * (bottom - top)
    return [
        Rect(
            x=LEFT + index * step, y=bottom - height, width=step - 0.5, height=height, fill=fill,
            opacity=opacity,
        )
        for index, height in enumerate(heights)
        if height
    ]  # fmt: skip


def _code_marks(found: Quantized, shown: int, limit: float) -> list[Mark]:
    top, bottom = CODES
    scale = found.scales[shown]
    used = set(found.codes[shown])
    middle, half = (LEFT + WIDTH) / 2, (WIDTH - LEFT) / 2
    return [
        Rect(
            x=middle + point * scale / limit * half - 0.75, y=top, width=1.5, height=bottom - top,
            fill="text", opacity=1.0 if code in used else 0.25,
        )
        for code, point in enumerate(found.points)
    ]  # fmt: skip


def _block_marks(found: Quantized, shown: int) -> list[Mark]:
    top, bottom = BLOCK_BARS
    max_error = round_up(max(float(found.errors.max()), 1e-4))
    step = (WIDTH - LEFT) / len(found.errors)
    width = step - min(0.15 * step, 1.5)
    heights = found.errors / max_error * (bottom - top)
    return [
        _title(top - 12, f"Error of each block; over all blocks {percent(found.error)}"),
        _small(LEFT - 6, top + 8, f"{100 * max_error:g} %", "end"),
        _small(LEFT - 6, bottom, "0", "end"),
        *(
            Rect(
                x=LEFT + index * step, y=bottom - height, width=width, height=height,
                fill=LOOKS["error"],
            )
            for index, height in enumerate(heights)
        ),
        Rect(x=LEFT, y=bottom, width=WIDTH - LEFT, height=1, fill="rule"),
        _small(LEFT, bottom + 15, "block 1"),
        *([_small(WIDTH, bottom + 15, f"{len(heights):,}", "end")] if len(heights) > 1 else []),
        Rect(
            x=LEFT + shown * step - 1, y=top - 1, width=width + 2, height=bottom - top + 3,
            stroke="text", stroke_width=1.5, radius=1,
        ),
    ]  # fmt: skip


def _bit_marks(found: Quantized, code_bits: int) -> list[Mark]:
    per_bit = (WIDTH - LEFT) / MAX_BITS
    scale_bits = found.bits_per_weight - code_bits
    text = (
        f"{code_bits} for the code, {fixed(scale_bits, 2)} for the scale (hatched) · "
        f"{format_bytes(found.bytes)}, {format_bytes(SAMPLE * FP32_BYTES)} in fp32"
    )
    codes = Rect(x=LEFT, y=BITS_BAR, width=code_bits * per_bit, height=12, fill=LOOKS["weights"])
    return [
        _title(BITS_BAR - 10, f"{fixed(found.bits_per_weight, 2)} bits per weight"),
        _small(LEFT + 150, BITS_BAR - 10, text),
        codes,
        replace(codes, x=LEFT + codes.width, width=scale_bits * per_bit, hatch=True),
        *(
            _small(LEFT + bits * per_bit, BITS_BAR + 26, label, "middle")
            for bits, label in ((0, "0"), (2, "2"), (4, "4"), (6, "6"), (8, "8 bits"))
        ),
    ]


def round_up(value: float) -> float:
    """The value rounded up to 1, 2 or 5 times a power of ten, like `roundStep` in common.js."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value)


def percent(share: float) -> str:
    return f"{fixed(100 * share, 2)} %"
