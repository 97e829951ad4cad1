"""Limits on what a run may use, by rank: bytes on the wire, live bytes, calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autograder.exercise.attempt import SENT
from autograder.guest.case import Case
from shardlab.run import Run
from shardlab.trace.measured_traffic import ring_bytes

UNEXPLAINED_BYTES = 16_384  # of gloo's own messages
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


def recorded_calls_explain(
    sent: Callable[[Run], Sequence[int]], is_large: Callable[[Case], bool]
) -> Budget:
    """For graders: in large cases, most bytes on the wire are those of recorded calls.

    Calls are recorded next to student code, and budgets of calls rely on them.
    """

    def unexplained(run: Run) -> list[int]:
        # gloo's reduce-scatter moves twice what a ring would
        calls = [*run.calls, *(call for call in run.calls if "reduce_scatter" in call.op)]
        recorded = ring_bytes(calls, run.world_size).sum(axis=1).tolist()
        return [max(0, n - round(1.5 * own)) for n, own in zip(sent(run), recorded, strict=True)]

    return Budget(
        "bytes that no recorded call explains",
        unexplained,
        lambda case: Limit(UNEXPLAINED_BYTES) if is_large(case) else None,
        heading="without a recorded call",
        from_outside=True,
        contradicts="moves bytes that none of its recorded calls explains",
    )


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
