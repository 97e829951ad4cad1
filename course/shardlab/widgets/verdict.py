"""How a guess compares with the measurement, in words.

``verdict.js`` does the same; a test compares them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shardlab.widgets.units import fixed, format_bytes, format_seconds

EQUAL = 0.02  # as a fraction of the answer: allows for rounding and for the protocol's own bytes
CLOSE = 0.1
ALIKE = 0.2  # several numbers that are all this near to a named wrong answer are taken for it
NEGLIGIBLE = 0.01  # of the largest of several answers: a rank that only replies counts as sending 0


class Verdict(NamedTuple):
    """outcome: "right", "close", "named" (equal to a named wrong answer) or "off"."""

    outcome: str
    text: str


def plain(number: float, digits: int = 4) -> str:
    """``1.375``, ``0.25``, ``262,144``: significant ``digits``, or all before the point."""
    rounded = float(f"{number:.{digits}g}") if abs(number) < 1000 else float(fixed(number, 0))
    return f"{rounded:,.12f}".rstrip("0").rstrip(".")


def format_amount(amount: float, unit: str) -> str:
    """``amount`` with its unit: bytes ("B") and seconds ("s") in a suitable one."""
    if unit == "B":
        return format_bytes(amount)
    if unit == "s":
        return format_seconds(amount)
    return f"{plain(amount)} {unit}".strip()


def on_numbers(
    guess: Sequence[float],
    answer: Sequence[float],
    named: Mapping[str, Sequence[float]],
    labels: Sequence[str],
    source: str,
) -> Verdict:
    """``guess`` against ``answer``, number by number; ``labels`` names several."""
    off = _deviations(guess, answer)
    if max(off) <= EQUAL:
        return Verdict("right", "Right." if max(off) == 0 else "Right, within 2 %.")
    ratio = _common_ratio(guess, answer, source)
    each = "each " if len(guess) > 1 else ""
    right = sum(share <= EQUAL for share in off)
    prefix = f"{each}{ratio}: " if ratio else f"{right} of {len(off)} right: "
    for name, values in named.items():
        if max(_deviations(guess, values)) <= EQUAL:
            return Verdict("named", _sentence(f"{prefix}that is {name}"))
    if max(off) <= CLOSE:
        more = f": {ratio}" if ratio and not each else ""
        return Verdict("close", _sentence(f"{each}within 10 %{more}"))
    distances = {name: max(_deviations(guess, values)) for name, values in named.items() if each}
    nearest = min(distances, key=distances.__getitem__, default="")
    if nearest and distances[nearest] <= ALIKE and distances[nearest] < max(off):
        return Verdict("named", _sentence(f"{prefix}that is, within 20 %, {nearest}"))
    if ratio:
        return Verdict("off", _sentence(f"{each}{ratio}"))
    worst = off.index(max(off))
    near = sum(share <= CLOSE for share in off)
    which = _difference(guess[worst], answer[worst], source)
    text = f"{near} of {len(off)} within 10 %; furthest off: {labels[worst]}, {which}"
    text += _named_parts(guess, off, named, labels)
    return Verdict("off", _sentence(text))


def _named_parts(
    guess: Sequence[float],
    off: Sequence[float],
    named: Mapping[str, Sequence[float]],
    labels: Sequence[str],
) -> str:
    """Each wrong number that equals the same number of a named wrong answer."""
    matches: dict[str, list[str]] = {}
    equal = {name: _deviations(guess, values) for name, values in named.items()}
    for part, label in enumerate(labels):
        names = [name for name in named if off[part] > EQUAL >= equal[name][part]]
        if names:
            matches.setdefault(names[0], []).append(label)
    return "".join(f"; {', '.join(parts)}: that is {name}" for name, parts in matches.items())


def on_options(
    guess: Sequence[str], answer: Sequence[str], named: Mapping[str, Sequence[str]]
) -> Verdict:
    """The chosen options against the right ones."""
    missing = [option for option in answer if option not in guess]
    wrong = [option for option in guess if option not in answer]
    if not missing and not wrong:
        return Verdict("right", "Right.")
    for name, values in named.items():
        if set(values) == set(guess):
            return Verdict("named", _sentence(f"{_listed(guess)}: that is {name}"))
    if len(guess) == len(answer) == 1:
        return Verdict("off", f"Not “{guess[0]}” but “{answer[0]}”.")
    found = f"{len(answer) - len(missing)} of {len(answer)} found"
    parts = [found]
    if missing:
        parts.append(f"missing: {_listed(missing)}")
    if wrong:
        parts.append(f"wrong: {_listed(wrong)}")
    return Verdict("off", _sentence("; ".join(parts)))


def _deviations(guess: Sequence[float], answer: Sequence[float]) -> list[float]:
    least = NEGLIGIBLE * max(map(abs, answer))
    return [_share(abs(g - a), max(abs(a), least)) for g, a in zip(guess, answer, strict=True)]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0 if part == 0 else math.inf


def _common_ratio(guess: Sequence[float], answer: Sequence[float], source: str) -> str:
    """The common factor by which all numbers are off, in words; "" if there is none."""
    if len(guess) > 1 and not all(answer):
        return ""
    ratios = [g / a for g, a in zip(guess, answer, strict=True)] if all(answer) else [0.0]
    if max(ratios) - min(ratios) > EQUAL * max(ratios):
        return ""
    return _difference(guess[0], answer[0], source)


def _difference(guess: float, answer: float, source: str) -> str:
    if answer == 0:
        return f"the {source} value is 0"
    ratio = guess / answer
    if ratio == 0:
        return f"0 instead of the {source} value"
    if ratio >= 2 * (1 - EQUAL) or ratio <= 0.5 * (1 + EQUAL):
        return f"{plain(ratio, 2)} times the {source} value"
    return f"{fixed(100 * abs(ratio - 1), 0)} % too {'high' if ratio > 1 else 'low'}"


def _listed(options: Sequence[str]) -> str:
    return ", ".join(options) if options else "none"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
