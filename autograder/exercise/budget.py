"""Limits on what a run may use, by rank: bytes on the wire, live bytes, calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autograder.exercise.attempt import SENT
from autograder.guest.case import Case
from shardlab.run import Run

ByRank = float | Sequence[float]  # one number: the same for every rank


@dataclass(frozen=True)
class Limit:
    """``least``: what a right answer cannot do without; less means that data went another way."""

    most: ByRank
    least: ByRank = 0

    @classmethod
    def around(cls, ideal: ByRank, share: float) -> Limit:
        """Within ``share`` of the ideal: 0.01 allows 1 % more and 1 % less."""
        if isinstance(ideal, Sequence):
            return cls([(1 + share) * x for x in ideal], [(1 - share) * x for x in ideal])
        return cls((1 + share) * ideal, (1 - share) * ideal)


@dataclass(frozen=True)
class Budget:
    """A limit for every rank on something that the run measured.

    Where ``limit`` would give an answer away, leave it out here and write it in the hidden half,
    ``limits = {label: ...}``.
    """

    label: str
    used: Callable[[Run], Sequence[int]]  # by rank
    limit: Callable[[Case], Limit | None] | None = None  # returns None where a case has no limit
    heading: str = SENT  # of its column in the check's table
    unit: str = "B"
    # Whether it is read off the ranks' processes, where none of their code can change it: for
    # graders alone.  Missed where all others are kept, it says that these were forged.
    from_outside: bool = False


def sent_bytes(run: Run) -> list[int]:
    """On the wire, by rank."""
    return run.traffic.sent_by_rank.tolist()


def from_outputs(key: str) -> Callable[[Run], list[int]]:
    """A whole number that each rank returned, 0 where it did not come to its end."""

    def used(run: Run) -> list[int]:
        found = (out.get(key) if isinstance(out, dict) else 0 for out in run.outputs)
        return [number if type(number) is int else 0 for number in found]

    return used


def by_rank(values: ByRank, world_size: int) -> tuple[int, ...]:
    if isinstance(values, Sequence):
        return tuple(int(value) for value in values)
    return (int(values),) * world_size
