"""Measures the time a run has used, not counting its waits for a processor.

On a busy machine ranks wait for a processor.  For untrusted code, which is graded, these waits do
not count: its time is the wall time minus the longest wait of any thread of the ranks.  Two limits
bound this: the processor time of all its processes, and the wall time itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from shardlab.linux import thread
from shardlab.ranks.trust import Trust

CPU_CHECK_S = 1.0  # how often the processor time of all processes is read
SHORT_S = 0.5  # shorter runs are not measured; for others, waits count from here
# Wall-time limit for untrusted code, in multiples of timeout_s (times ranks per processor, if there
# are more ranks than processors)
MAX_STRETCH = 10.0


def most_wall_s(timeout_s: float, ranks: int) -> float:
    """The wall time that a run of untrusted code may take."""
    return timeout_s * MAX_STRETCH * max(1.0, ranks / (os.cpu_count() or 1))


class Clock:
    def __init__(self, timeout_s: float, trust: Trust) -> None:
        self.timeout_s = timeout_s
        self.trust = trust
        self.started_s = 0.0
        self.pids: list[int | None] = []
        # By rank, then by thread: nanoseconds waited before the first update
        self.before: list[dict[str, int]] | None = None
        self.waited_s = 0.0
        self.parent_pid: int | None = None  # parent of the ranks, and of their orphans
        self.start_cpu_s = 0.0
        self.cpu_checked_s = 0.0
        self.cpu_is_used_up = False

    def start(self, now: float, pids: Sequence[int | None]) -> None:
        self.started_s = self.cpu_checked_s = now
        self.pids = list(pids)

    def update(self, now: float) -> None:
        if self.trust is Trust.OWN or now - self.started_s < SHORT_S:
            return
        if self.before is None:
            self.before = [thread.waited_ns_by_thread(pid) for pid in self.pids]
            self.parent_pid = thread.parent(next(filter(None, self.pids), None))
            self.start_cpu_s = self._cpu_s()
        for pid, before in zip(self.pids, self.before, strict=True):
            for thread_id, waited in thread.waited_ns_by_thread(pid).items():
                self.waited_s = max(self.waited_s, (waited - before.get(thread_id, 0)) * 1e-9)
        if now - self.started_s > self.timeout_s and now - self.cpu_checked_s > CPU_CHECK_S:
            self.cpu_checked_s = now
            self.cpu_is_used_up = self.used_cpu_s > self.timeout_s * len(self.pids)

    def is_over(self, now: float, paused_s: float = 0.0) -> bool:
        """Whether the run has used up its time."""
        used_s = now - self.started_s - self.waited_s - paused_s
        return used_s > self.timeout_s or self.cpu_is_used_up

    def is_machine_too_busy(self, now: float, paused_s: float = 0.0) -> bool:
        """Whether the run has reached the wall-time limit before it used up its time."""
        most_s = most_wall_s(self.timeout_s, len(self.pids))
        return self.trust is Trust.UNTRUSTED and now - self.started_s - paused_s > most_s

    @property
    def used_cpu_s(self) -> float:
        """Processor time of the run; 0 if it is not measured."""
        return 0.0 if self.before is None else self._cpu_s() - self.start_cpu_s

    def _cpu_s(self) -> float:
        """Of all descendants of the process that forks ranks, including those that have ended."""
        _, ended_s = thread.cpu_s(self.parent_pid)
        # Linux may leave out a process from a list of children that changes while it is read.
        pids = {*self.pids, *thread.descendants(self.parent_pid)}
        return ended_s + sum(sum(thread.cpu_s(pid)) for pid in pids)
