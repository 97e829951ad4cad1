"""The position of each chapter on the map of the course, and the arrows between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean


@dataclass(frozen=True)
class Place:
    """``row``: from the top. ``x``: the center, as a fraction of the map's width."""

    row: int
    x: float


def arrows(needs: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """(from, to) for each chapter that another one needs, without redundant arrows: if 02 needs 01
    and 03 needs both, the result is 01 → 02 → 03.

    Needs that are not keys of ``needs`` are ignored. Raises ValueError for circular needs.
    """
    before = {name: _ancestors(name, needs, ()) for name in needs}
    return [
        (need, name)
        for name in needs
        for need in sorted(_known(name, needs))
        if not any(need in before[other] for other in _known(name, needs))
    ]


def places(needs: Mapping[str, Sequence[str]]) -> dict[str, Place]:
    """Place each chapter in a row below all that it needs, and horizontally close to them."""
    rows: dict[str, int] = {}
    for name in sorted(needs, key=lambda name: (len(_ancestors(name, needs, ())), name)):
        rows[name] = max((rows[need] + 1 for need in _known(name, needs)), default=0)
    found: dict[str, Place] = {}
    for row in range(max(rows.values(), default=-1) + 1):
        x_above = {
            name: mean(above)
            if (above := [found[start].x for start, end in arrows(needs) if end == name])
            else 0.5
            for name in sorted(rows)
            if rows[name] == row
        }
        in_order = sorted(x_above, key=lambda name: (x_above[name], name))
        for index, name in enumerate(in_order):
            x = x_above[name] if len(in_order) == 1 else (index + 0.5) / len(in_order)
            found[name] = Place(row, x)
    return found


def _known(name: str, needs: Mapping[str, Sequence[str]]) -> set[str]:
    return set(needs[name]) & set(needs)


def _ancestors(name: str, needs: Mapping[str, Sequence[str]], path: tuple[str, ...]) -> set[str]:
    if name in path:
        raise ValueError(f"these chapters need each other: {', '.join(path)}")
    known = _known(name, needs)
    return known.union(*(_ancestors(need, needs, (*path, name)) for need in known))
