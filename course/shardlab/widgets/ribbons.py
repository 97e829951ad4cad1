"""The shapes of an activation timeline: a ribbon for each tensor, stacked by bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardlab.trace.lifetimes import KINDS, Life, Lifetimes


@dataclass(frozen=True)
class Ribbon:
    """One tensor in the stack. pieces: (first operator, end operator, bytes below it)."""

    life: Life
    pieces: tuple[tuple[int, int, int], ...]

    def path(self, box: Box) -> str:
        """SVG path data: along the lower edge and back along the upper one."""
        lower = "".join(
            f"{'M' if not i else 'L'}{box.x(start):.1f} {box.y(below):.1f}H{box.x(end):.1f}"
            for i, (start, end, below) in enumerate(self.pieces)
        )
        upper = "".join(
            f"L{box.x(end):.1f} {box.y(below + self.life.bytes):.1f}H{box.x(start):.1f}"
            for start, end, below in reversed(self.pieces)
        )
        return f"{lower}{upper}Z"


@dataclass(frozen=True)
class Box:
    """A panel's position and scales."""

    left: float
    right: float
    top: float
    bottom: float
    operators: int  # over the whole width
    max_bytes: float  # over the whole height

    def x(self, operator: float) -> float:
        return self.left + operator / self.operators * (self.right - self.left)

    def y(self, count: float) -> float:
        return self.bottom - count / self.max_bytes * (self.bottom - self.top)


def stack_order(lives: Sequence[Life]) -> list[int]:
    """Kept tensors at the bottom, temporaries on top; within a kind, older ones below."""
    return sorted(range(len(lives)), key=lambda index: (KINDS.index(lives[index].kind), index))


def ribbons(run: Lifetimes) -> list[Ribbon]:
    """The run's ribbons in stack order. A tensor moves down when one below it is freed."""
    order = stack_order(run.lives)
    pieces: dict[int, list[tuple[int, int, int]]] = {index: [] for index in order}
    for operator in range(run.operators):
        below = 0
        for index in order:
            life = run.lives[index]
            if not life.created_at <= operator < life.freed_at:
                continue
            before = pieces[index]
            if before and before[-1][2] == below:
                before[-1] = (before[-1][0], operator + 1, below)
            else:
                before.append((operator, operator + 1, below))
            below += life.bytes
    return [Ribbon(run.lives[index], tuple(pieces[index])) for index in order if pieces[index]]
