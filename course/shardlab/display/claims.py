"""Claims that a notebook checks against a run: one line for the reader, an error if one fails."""

from __future__ import annotations

from typing import Any

import numpy as np

_LISTED_CHARS = 24  # longer lists of values are shown as a range


def holds(
    claim: str,
    measured: Any,
    predicted: Any = None,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    above: float | None = None,
    below: float | None = None,
    unit: str = "",
) -> None:
    """Check a claim about a run and print it, with what was measured, in one line.

        holds("each rank sends 2(N−1)/N · S", run.traffic.sent_by_rank, predicted, rtol=0.01)
        holds("the model learns", losses[-1], below=4)
        holds("both ranks return the same", first == second)

    measured: a number or an array of any shape, of which every element has to hold. Next to
        ``predicted`` anything that compares with ``==``; with neither a prediction nor a bound, a
        truth value or an array of them.
    predicted: a number, or as many as were measured. They may be ``rtol * abs(predicted) + atol``
        apart, so by default they have to be equal.
    above, below: bounds that no measured value may reach.
    unit: of the numbers, as it is printed: "bytes".

    Raises AssertionError where the claim does not hold, and ValueError where nothing was measured.
    """
    passed, evidence = _examine(measured, predicted, rtol, atol, above, below, unit)
    line = f"{claim}: {evidence}" if evidence else claim
    if not passed:
        raise AssertionError(f"does not hold: {line}")
    print(f"✓ {line}")


def _examine(
    measured: Any,
    predicted: Any,
    rtol: float,
    atol: float,
    above: float | None,
    below: float | None,
    unit: str,
) -> tuple[bool, str]:
    """Whether the claim holds, and the numbers that say so."""
    values = _numbers(measured)
    if np.size(measured) == 0 if values is None else values.size == 0:
        raise ValueError("nothing was measured")
    shown = f"measured {_text(measured, values, unit)}"
    if predicted is not None:
        expected = _numbers(predicted)
        shown += f", predicted {_text(predicted, expected, unit)}"
        if values is None or expected is None:
            same = bool(np.all(measured == predicted))
            return same, shown + (" (equal)" if same else "")
        apart = np.abs(values - expected)
        passed = bool((apart <= rtol * np.abs(expected) + atol).all())
        return passed, shown + _distance(
            apart, np.broadcast_to(np.abs(expected), apart.shape), rtol, atol, unit
        )
    if above is None and below is None:
        return bool(np.all(measured)), ""
    if values is None:
        raise ValueError(f"only numbers can be above or below a bound, not {measured!r}")
    for word, bound in (("above", above), ("below", below)):
        shown += "" if bound is None else f", {word} {_number(bound)}{unit and f' {unit}'}"
    low, high = values.min(), values.max()
    return bool((above is None or low > above) and (below is None or high < below)), shown


def _numbers(value: Any) -> np.ndarray | None:
    """As an array of numbers, or None if it is something else."""
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except (ValueError, TypeError):
        return None
    return array if np.issubdtype(array.dtype, np.number) else None


def _text(value: Any, numbers: np.ndarray | None, unit: str) -> str:
    if numbers is None:
        return repr(value)
    flat = numbers.ravel()
    if flat.size > 1 and (flat == flat[0]).all():
        text = f"{flat.size} × {_number(flat[0])}"
    else:
        text = ", ".join(map(_number, flat[:_LISTED_CHARS]))
        if len(text) > _LISTED_CHARS:
            text = f"{_number(flat.min())} to {_number(flat.max())}"
    return f"{text} {unit}".strip()


def _number(value: Any) -> str:
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def _distance(apart: np.ndarray, size: np.ndarray, rtol: float, atol: float, unit: str) -> str:
    """How far the two are apart, and how far they may be."""
    if not apart.any():
        return " (equal)"
    if not rtol and not atol:
        return ""
    at_most = "≤ " if apart.size > 1 else ""
    if rtol and not atol and size.all():
        here, allowed = _percent((apart / size).max()), _percent(rtol)
    else:
        here, allowed = _number(apart.max()), _number((rtol * size + atol).max())
        allowed += unit and f" {unit}"
    return f" ({at_most}{here} apart; {allowed} allowed)"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
