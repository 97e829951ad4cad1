"""How much of the time that passed a run has had the machine for.

On a busy machine ranks wait for a processor.  For untrusted code, which is graded, that does not
count: its time is the wall time less the longest that one thread of a rank waited.  Two limits
bound this: the processor time of all its processes, and the wall time itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from shardlab.ranks import thread
from shardlab.ranks.trust import Trust

CPU_LOOK_S = 1.0  # how often all processes of a run are gone through
SHORT_S = 0.5  # of a run that takes no longer nothing is asked; of others, what they waited since
# How many times timeout_s may pass for untrusted code (times the ranks for each processor, where
# there are more ranks than processors)
MOST_TIMES = 10.0


class Clock:
    def __init__(self, timeout_s: float, trust: Trust) -> None:
        self.timeout_s = timeout_s
        self.trust = trust
        self.began_s = 0.0
        self.pids: list[int | None] = []
        # By rank, then by thread: nanoseconds waited before it was looked at first
        self.before: list[dict[str, int]] | None = None
        self.waited_s = 0.0
        self.base: int | None = (
            None  # the process that ranks, and orphans of theirs, are children of
        )
        self.base_cpu_s = 0.0
        self.cpu_looked_s = 0.0
        self.cpu_is_used_up = False

    def start(self, now: float, pids: Sequence[int | None]) -> None:
        self.began_s = self.cpu_looked_s = now
        self.pids = list(pids)

    def look(self, now: float) -> None:
        if self.trust is Trust.OWN or now - self.began_s < SHORT_S:
            return
        if self.before is None:
            self.before = [thread.waits_ns(pid) for pid in self.pids]
            self.base = thread.parent(self.pids[0])
            self.base_cpu_s = self._cpu_s()
        for pid, before in zip(self.pids, self.before, strict=True):
            for number, waited in thread.waits_ns(pid).items():
                self.waited_s = max(self.waited_s, (waited - before.get(number, 0)) * 1e-9)
        if now - self.began_s > self.timeout_s and now - self.cpu_looked_s > CPU_LOOK_S:
            self.cpu_looked_s = now
            used_s = self._cpu_s() - self.base_cpu_s
            self.cpu_is_used_up = used_s > self.timeout_s * len(self.pids)

    def is_over(self, now: float, paused_s: float = 0.0) -> bool:
        """Whether the run has had its time."""
        had_s = now - self.began_s - self.waited_s - paused_s
        return had_s > self.timeout_s or self.cpu_is_used_up

    def is_machine_too_busy(self, now: float, paused_s: float = 0.0) -> bool:
        """Whether so much time has passed that the run cannot be expected to get its share."""
        most_s = self.timeout_s * MOST_TIMES
        most_s *= max(1.0, len(self.pids) / (os.cpu_count() or 1))
        return self.trust is Trust.UNTRUSTED and now - self.began_s - paused_s > most_s

    def _cpu_s(self) -> float:
        """Of all processes below the one that forks ranks, and of those that have ended."""
        _, ended_s = thread.cpu_s(self.base)
        return ended_s + sum(sum(thread.cpu_s(pid)) for pid in thread.descendants(self.base))
