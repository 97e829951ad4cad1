"""Round times below a plot, as time_axis.js draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence


def time_ticks(start_s: float, end_s: float, count: int) -> list[float]:
    """About ``count`` round times (steps of 1, 2 or 5) within the span."""
    rough = (end_s - start_s) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = math.ceil(start_s / step - 1e-9)
    return [index * step for index in range(first, math.floor(end_s / step + 1e-9) + 1)]


def tick_labels(ticks: Sequence[float], end_s: float) -> list[str]:
    """Times in one unit, with enough decimals to distinguish neighbors."""
    unit, scale = ("µs", 1e6) if end_s < 1e-3 else ("ms", 1e3) if end_s < 1 else ("s", 1.0)
    step = (ticks[1] - ticks[0]) * scale if len(ticks) > 1 else 1.0
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{tick * scale:.{decimals}f} {unit}" for tick in ticks]
