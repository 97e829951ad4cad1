"""Bytes, counts and seconds as text. ``units.js`` does the same; a test compares them.

Throughout the course, measurements on this machine and their predictions are in KiB, MiB and GiB
(powers of 1024). Models and machines too large for this one, and all rates, are in kB, MB and GB
(powers of 1000), as in papers and data sheets.
"""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal


def format_bytes(count: float) -> str:
    """``6291456`` as ``"6.0 MiB"``; below 1 KiB as ``"512 B"``."""
    if count < 1024:
        return f"{fixed(count, 0)} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 999.95:  # 1.0 MiB, not 1018.5 KiB: it may stand next to 1.1 MiB
            return f"{fixed(value, 1)} {unit}"
    return f"{fixed(value / 1024, 1)} PiB"


def exact_bytes(count: float) -> str:
    """``6291456`` as ``"6,291,456 bytes (6.0 MiB)"``."""
    noun = "byte" if count == 1 else "bytes"
    exact = f"{count:,.0f} {noun}"
    return exact if count < 1024 else f"{exact} ({format_bytes(count)})"


def format_seconds(seconds: float) -> str:
    """Three digits in a suitable unit: ``"230 µs"``, ``"2.41 ms"``, ``"1.25 s"``."""
    if seconds == 0:
        return "0 s"
    unit, value = "µs", seconds * 1e6
    if value >= 999.5:
        unit, value = "ms", seconds * 1e3
    if value >= 999.5:
        unit, value = "s", seconds
    return f"{_three_digits(value)} {unit}"


def _three_digits(value: float) -> str:
    return fixed(value, 0 if value >= 99.95 else 1 if value >= 9.995 else 2)


def fixed(value: float, decimals: int) -> str:
    """Like JavaScript's toFixed: Python's own formatting rounds 1.25 down and 1.35 up."""
    return str(Decimal(float(value)).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP))


def format_si(amount: float, unit: str) -> str:
    """Three digits with a decimal prefix: ``20 GB``, ``1.25 TFLOP/s``; for rates and capacities."""
    value, prefix = float(amount), ""
    for larger in "kMGTPE":
        if value < 999.5:
            break
        value, prefix = value / 1000, larger
    decimals = 2 - math.floor(math.log10(value)) if value else 0
    return f"{float(fixed(value, decimals)):g} {prefix}{unit}"


def format_count(count: float) -> str:
    """A number of things: ``8,192``, ``1.25M``, ``10B``, ``1T``."""
    if count < 1e6:
        return f"{int(fixed(count, 0)):,}"
    return format_si(count, "").replace("G", "B").replace(" ", "")
