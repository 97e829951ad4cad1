"""A hang as edges from waiting ranks to the ranks that they wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardlab.errors import DeadlockError, LaunchError, RunTimeout, Waiting
from shardlab.run import Call


@dataclass(frozen=True)
class WaitEdge:
    """One rank waits for another. ``in_cycle``: the edge is part of the deadlock's cycle."""

    waiter: int
    awaited: int
    in_cycle: bool


def waits_of(error: LaunchError | None, calls: Sequence[Call]) -> list[WaitEdge]:
    """Reads the launcher's table if there is one, else the calls that never ended."""
    cycle = error.cycle if isinstance(error, DeadlockError) else ()
    cycle_edges = set(zip(cycle, (*cycle[1:], *cycle[:1]), strict=True))
    table = table_of(error)
    if table:
        edges = [(row.rank, awaited) for row in table for awaited in row.waits_for]
    else:
        edges = [
            (call.rank, awaited)
            for call in calls
            if call.end_s is None
            for awaited in _awaited_by(call, calls)
        ]
    return [
        WaitEdge(waiter, awaited, (waiter, awaited) in cycle_edges)
        for waiter, awaited in dict.fromkeys(edges)
        if waiter != awaited
    ]


def table_of(error: LaunchError | None) -> tuple[Waiting, ...]:
    """The error's table of ranks, empty where it has none."""
    return error.table if isinstance(error, DeadlockError | RunTimeout) else ()


def _awaited_by(call: Call, calls: Sequence[Call]) -> list[int]:
    """The peer, or the ranks of the group that never entered this collective."""
    if call.is_p2p:
        return [] if call.peer is None else [call.peer]
    entered = {
        other.rank
        for other in calls
        if (other.op, other.group, other.seq) == (call.op, call.group, call.seq)
    }
    return [rank for rank in call.group if rank not in entered]
