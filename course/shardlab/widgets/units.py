"""Bytes and seconds as text. ``common.js`` holds the same three functions; a test compares them."""

from __future__ import annotations


def format_bytes(count: float) -> str:
    """``6291456`` as ``"6.0 MiB"``; below 1 KiB as ``"512 B"``."""
    if count < 1024:
        return f"{count:.0f} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1023.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} PiB"


def exact_bytes(count: float) -> str:
    """``6291456`` as ``"6,291,456 bytes (6.0 MiB)"``."""
    noun = "byte" if count == 1 else "bytes"
    exact = f"{count:,.0f} {noun}"
    return exact if count < 1024 else f"{exact} ({format_bytes(count)})"


def format_seconds(seconds: float) -> str:
    """Three digits in the unit that suits: ``"230 µs"``, ``"2.41 ms"``, ``"1.25 s"``."""
    if seconds == 0:
        return "0 s"
    unit, value = "µs", seconds * 1e6
    if value >= 999.5:
        unit, value = "ms", seconds * 1e3
    if value >= 999.5:
        unit, value = "s", seconds
    decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{decimals}f} {unit}"
