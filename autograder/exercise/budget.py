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
    """``least``: the minimum of a correct answer; less means that data took an unmeasured path."""

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

    If ``limit`` would reveal an answer, leave it out here and define it in the hidden half,
    ``LIMITS = {label: ...}``.
    """

    label: str
    used: Callable[[Run], Sequence[int]]  # by rank
    limit: Callable[[Case], Limit | None] | None = None  # returns None if a case has no limit
    heading: str = SENT  # of its column in the check's table
    unit: str = "B"
    # Whether it is measured from outside the ranks' processes, where their code cannot change it.
    # For graders only.  If it is exceeded and all other budgets fit, the rank's own records are
    # wrong, and the answer earns nothing; ``contradicts`` is the mistake that is named then.
    from_outside: bool = False
    contradicts: str = ""


def sent_bytes(run: Run) -> list[int]:
    """On the wire, by rank."""
    return run.traffic.sent_by_rank.tolist()


def sent_since(withheld: str, block: str) -> Callable[[Run], list[int]]:
    """On the wire, by rank, since it got the first of the values withheld from it.

    Counted from outside, at both ends.  Where the system's counters cannot be read, the rank's own
    record of its measured blocks counts.
    """

    def used(run: Run) -> list[int]:
        before = [next(iter(of_rank.get(withheld, ())), 0) for of_rank in run.sent_before]
        known = [each for each in before if each is not None]
        if len(known) < run.world_size:
            return run.traffic[block].sent_by_rank.tolist()
        totals = run.traffic.sent_by_rank.tolist()
        return [total - each for total, each in zip(totals, known, strict=True)]

    return used


def received_bytes(run: Run) -> list[int]:
    """On the wire, by rank."""
    return run.traffic.received_by_rank.tolist()


def from_outputs(key: str) -> Callable[[Run], list[int]]:
    """An int that each rank returned under ``key``; 0 if it did not finish."""

    def used(run: Run) -> list[int]:
        found = (out.get(key) if isinstance(out, dict) else 0 for out in run.outputs)
        return [number if type(number) is int else 0 for number in found]

    return used


def by_rank(values: ByRank, world_size: int) -> tuple[int, ...]:
    if isinstance(values, Sequence):
        return tuple(int(value) for value in values)
    return (int(values),) * world_size
