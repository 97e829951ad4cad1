"""Scripted logs of ranks, to test deadlock detection and its messages without real ranks.

ranks = ScriptedRanks(2)
ranks.call(0, "send", 1)        # rank 0 is in send to rank 1
ranks.finish(1)                 # rank 1 has returned
stuck(ranks.views(), ranks.log.groups)
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from shardlab.ranks.deadlock import RankView
from shardlab.trace.calls import CallLog

WORLD = "world"
FILE = "student.py"
ITEM_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2, "int64": 8}


def call_event(
    call_id: Any,
    op: str,
    peer: int | None = None,
    *,
    group: str = WORLD,
    shape: tuple[int, ...] = (8,),
    dtype: str = "float32",
    line: int = 1,
    tag: int = 0,
    options: str = "",
    start_s: float = 0.0,
) -> list[Any]:
    """A "call" event in the format of recorder.py."""
    n_bytes = math.prod(shape) * ITEM_BYTES[dtype]
    return [
        "call", call_id, op, n_bytes, peer, group, start_s, FILE, line,
        dtype, list(shape), 0, math.prod(shape), tag, options, False,
    ]  # fmt: skip


class ScriptedRanks:
    def __init__(self, world_size: int) -> None:
        self.log = CallLog(world_size)
        self.ids = itertools.count(1)
        self.finished: set[int] = set()
        self.computing: set[int] = set()
        self.group(WORLD, *range(world_size))

    def group(self, name: str, *ranks: int) -> None:
        for rank in ranks:
            self.log.add(rank, ["group", name, list(ranks)])

    def call(self, rank: int, op: str, peer: int | None = None, **options: Any) -> int:
        """The rank begins a call and waits for it; returns the call's id."""
        call_id = next(self.ids)
        self.log.add(rank, call_event(call_id, op, peer, **options))
        self.log.add(rank, ["wait", call_id, 0.5])
        return call_id

    def completed(self, rank: int, op: str, peer: int | None = None, **options: Any) -> None:
        """The rank began a call and completed it."""
        self.log.add(rank, ["end", self.call(rank, op, peer, **options), 1.0])

    def finish(self, *ranks: int) -> None:
        self.finished.update(ranks)

    def computes(self, *ranks: int) -> None:
        """The ranks compute, even if they have open calls."""
        self.computing.update(ranks)

    def views(self) -> list[RankView]:
        views = []
        for rank, pending in enumerate(self.log.pending):
            calls = tuple(pending.values())
            views.append(
                RankView(
                    rank=rank,
                    finished=rank in self.finished,
                    blocked_in=() if rank in self.finished | self.computing else calls,
                    started=self.log.started[rank],
                    receives_from_any=any(c.op == "recv" and c.peer is None for c in calls),
                )
            )
        return views
