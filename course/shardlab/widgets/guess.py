"""A guess, and an answer of the same form: a number, one for each label, or one or more options.

``asked`` is the scene of a prediction, which says what form that is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from shardlab.widgets.verdict import format_amount

Guess = float | list[float] | str | list[str]


def checked(amount: Any, asked: Mapping[str, Any]) -> Guess:
    """``amount`` in the form of a guess; raises ValueError."""
    options, labels = asked["options"], asked["labels"]
    if options:
        if isinstance(amount, bool):
            amount = "yes" if amount else "no"
        chosen = [amount] if isinstance(amount, str) else list(amount)
        if unknown := [option for option in chosen if option not in options]:
            raise ValueError(f"{unknown} must be among the options {options}")
        if asked["several"]:
            return [option for option in options if option in chosen]
        if len(chosen) != 1:
            raise ValueError(f"choose one of {options}, not {len(chosen)} of them")
        return str(chosen[0])
    numbers = _floats(amount)
    if labels and len(numbers) == 1:
        numbers *= len(labels)  # the same for each
    if len(numbers) != max(1, len(labels)):
        raise ValueError(f"{len(numbers)} numbers, but {max(1, len(labels))} are expected")
    return numbers if labels else numbers[0]


def text_of(amount: Guess | None, asked: Mapping[str, Any]) -> str:
    """A guess, or an answer of the same form, in words; "" if there is none."""
    if amount is None:
        return ""
    words = [x if isinstance(x, str) else format_amount(x, asked["unit"]) for x in as_list(amount)]
    if labels := asked["labels"]:
        words = [f"{label}: {word}" for label, word in zip(labels, words, strict=True)]
    return ", ".join(words) or "none"


def as_list(amount: Guess) -> list[Any]:
    return list(amount) if isinstance(amount, list) else [amount]


def _floats(amount: Any) -> list[float]:
    try:
        numbers = (
            [float(each) for each in amount] if hasattr(amount, "__iter__") else [float(amount)]
        )
    except (TypeError, ValueError):
        raise ValueError(f"{amount!r} is not a number") from None
    if not all(map(math.isfinite, numbers)) or min(numbers, default=0) < 0:
        raise ValueError(f"{amount} must be finite and not negative")
    return numbers
