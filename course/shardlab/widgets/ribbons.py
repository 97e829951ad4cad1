"""The shapes of an activation timeline: a ribbon for each tensor, stacked by bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardlab.lifetimes import KINDS, Life, Lifetimes


@dataclass(frozen=True)
class Ribbon:
    """One tensor in the stack: (from operator, to operator, bytes below it) piece by piece."""

    life: Life
    pieces: tuple[tuple[int, int, int], ...]

    def path(self, box: Box) -> str:
        """SVG path data: along the lower edge, and back along the upper one."""
        ahead = "".join(
            f"{'M' if not i else 'L'}{box.x(start):.1f} {box.y(below):.1f}H{box.x(end):.1f}"
            for i, (start, end, below) in enumerate(self.pieces)
        )
        back = "".join(
            f"L{box.x(end):.1f} {box.y(below + self.life.bytes):.1f}H{box.x(start):.1f}"
            for start, end, below in reversed(self.pieces)
        )
        return f"{ahead}{back}Z"


@dataclass(frozen=True)
class Box:
    """Where a panel lies, and its scales."""

    left: float
    right: float
    top: float
    bottom: float
    operators: int  # over the whole width
    most: float  # bytes over the whole height

    def x(self, operator: float) -> float:
        return self.left + operator / self.operators * (self.right - self.left)

    def y(self, count: float) -> float:
        return self.bottom - count / self.most * (self.bottom - self.top)


def stack_order(lives: Sequence[Life]) -> list[int]:
    """What is kept lies at the bottom, temporaries on top; among equals, the older one below."""
    return sorted(range(len(lives)), key=lambda index: (KINDS.index(lives[index].kind), index))


def ribbons(told: Lifetimes) -> list[Ribbon]:
    """In the order of the stack. A tensor moves down where one below it is gone."""
    order = stack_order(told.lives)
    pieces: dict[int, list[tuple[int, int, int]]] = {index: [] for index in order}
    for operator in range(told.operators):
        below = 0
        for index in order:
            life = told.lives[index]
            if not life.born <= operator < life.gone:
                continue
            before = pieces[index]
            if before and before[-1][2] == below:
                before[-1] = (before[-1][0], operator + 1, below)
            else:
                before.append((operator, operator + 1, below))
            below += life.bytes
    return [Ribbon(told.lives[index], tuple(pieces[index])) for index in order if pieces[index]]
