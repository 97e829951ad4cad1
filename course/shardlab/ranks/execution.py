"""One function running on ranks: its progress, and what it left behind."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from shardlab.nodes.link_meter import LinkMeter
from shardlab.ranks.clock import Clock
from shardlab.ranks.failure_detector import FailureDetector
from shardlab.ranks.meter import Counts, Meter, Reading, stray_bytes
from shardlab.ranks.process import RankProcess
from shardlab.ranks.trust import Trust
from shardlab.trace.calls import CallLog
from shardlab.trace.wire import Connection


@dataclass
class Execution:
    """One function on ranks 0 to ``world_size`` − 1, running or finished."""

    ranks: list[RankProcess]
    timeout_s: float
    trust: Trust
    before: Reading
    with_memory: bool = False
    with_process_memory: bool = False
    started_s: float = field(default_factory=time.monotonic)  # the origin of all times in the run
    after: Reading | None = None  # None while it runs
    link_meter: LinkMeter | None = None  # None for ranks on one node
    clock: Clock = field(init=False)
    log: CallLog = field(init=False)
    detector: FailureDetector = field(init=False)

    def __post_init__(self) -> None:
        self.clock = Clock(self.timeout_s, self.trust)
        self.log = CallLog(self.world_size)
        self.detector = FailureDetector(self.ranks, self.log, self.trust)

    def read_logs(self) -> None:
        """Read what the ranks have logged since the last call."""
        for process in self.ranks:
            for event in process.log.new_events():
                self.log.add(process.rank, event)

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    def sent_bytes(self, rank: int, meter: Meter) -> int | None:
        """Bytes that a rank has sent to others of this execution so far; None if unknown."""
        now = meter.read()
        if not now.counts:
            return None
        counts = now.between(self.world_size).items()
        before = self.before.counts
        return sum(n - before.get(at, (0, 0))[1] for at, (by, n) in counts if by == rank)

    @property
    def unseen_bytes(self) -> int | None:
        """Bytes on the network that the counted sockets between this execution's ranks do not show.

        They went through sockets opened and closed by hand, or through a rank that does not take
        part.  None if unknown.
        """
        unexplained = self.unexplained_bytes
        if unexplained is None or self.after is None:
            return None
        return max(0, unexplained) + stray_bytes(self.before, self.after, self.world_size)

    @property
    def unexplained_bytes(self) -> int | None:
        """Bytes on the network minus those of counted sockets; negative if these still wait for a
        link, or were dropped before it.  None if unknown."""
        if self.after is None:
            return None
        before, after = self.before.network_bytes, self.after.network_bytes
        if before is None or after is None:
            return None
        claimed = self._claimed().keys() | self.after.known
        counted = sum(
            self.after.passed.get((local, remote), 0) - self.before.passed.get((local, remote), 0)
            for local, remote in claimed
            if (remote, local) in claimed
        )
        return after - before - counted

    def _claimed(self) -> dict[Connection, int]:
        """Connections that a rank says it has opened or is closing, and that rank."""
        logged = (*self.log.opened, *self.log.closing)
        return {at: rank for rank, counts in logged for at in counts}

    def closed(self) -> Counts:
        """Of connections closed in this execution: the rank that says it had them, and the bytes
        that the operating system counted."""
        if self.after is None:
            return {}
        return {
            at: (rank, self.after.closed[at] - self.before.closed.get(at, 0))
            for at, rank in self._claimed().items()
            if self.after.closed.get(at, 0) > self.before.closed.get(at, 0)
            and at not in self.before.counts
        }

    @property
    def stored_bytes(self) -> int:
        return 0 if self.after is None else self.after.stored_bytes - self.before.stored_bytes

    @property
    def collectives(self) -> int | None:
        """Messages of gloo's collectives in this run, recorded or not; None if not counted."""
        before = self.before.collectives
        after = None if self.after is None else self.after.collectives
        return None if before is None or after is None else after - before

    @property
    def left_nothing_behind(self) -> bool:
        """Whether the ranks can run another function: all have returned or raised, no message is in
        flight between them, and they created and destroyed no groups."""
        return (
            all(process.state in ("finished", "failed") for process in self.ranks)
            and not any(process.forged or process.log.dropped for process in self.ranks)
            and not any(process.outbox or process.inbox.buffer for process in self.ranks)
            and not any(self.log.pending)
            and not (self.log.unmatched or self.log.opened or self.log.closing)
        )

    def progress(self, now: float) -> str:
        """The progress, in one line."""
        done = sum(process.state == "finished" for process in self.ranks)
        waiting = sum(map(bool, self.log.pending))
        ranks = {
            "computing": self.world_size - done - waiting,
            "waiting in a call": waiting,
            "finished": done,
        }
        states = ", ".join(f"{count} {state}" for state, count in ranks.items() if count > 0)
        calls = f"; {len(self.log.calls):,} calls so far" if self.log.calls else ""
        of = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        return f"{now - self.started_s:.0f} s of at most {self.timeout_s:g}, {of}: {states}{calls}"
