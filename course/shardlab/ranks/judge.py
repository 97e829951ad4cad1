"""Decides whether a run can still succeed; raises the error that names why it can't."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shardlab.errors import LaunchError
from shardlab.ranks import explain, thread
from shardlab.ranks.deadlock import RankView, stuck
from shardlab.ranks.process import RankProcess
from shardlab.trace.calls import CallLog, OpenCall

STILL_S = 1.0  # a rank that used no processor for this long while it waits is blocked
AFTERMATH_S = 0.4  # after a first sign of failure: time for the others', to tell cause from effect


class Judge:
    def __init__(self, ranks: Sequence[RankProcess], world_size: int) -> None:
        self.ranks = ranks  # grows while the run starts
        self.log = CallLog(world_size)
        self.mismatch_seen_s: float | None = None
        self.failure_seen_s: float | None = None

    def read_logs(self) -> None:
        for process in self.ranks:
            for event in process.log.new_events():
                self.log.add(process.rank, event)

    def look(self, now: float) -> None:
        """Raises DeadlockError where some rank can never go on."""
        self.read_logs()
        self.raise_mismatch(now)
        still = {process.rank for process in self.ranks if process.still_s(now) >= STILL_S}
        waits = stuck(self._views(still), self.log.groups)
        if waits and self.failure_seen_s is None:
            raise explain.deadlock_error(waits, self.views(), self.log.groups)

    def raise_mismatch(self, now: float) -> None:
        """Raises DeadlockError where ranks met with different calls or tensors."""
        mismatch = self.log.mismatch
        if mismatch is None:
            return
        if self.mismatch_seen_s is None:
            self.mismatch_seen_s = now
        members = self.log.members(mismatch.calls[0])
        if len(mismatch.calls) == len(members) or now > self.mismatch_seen_s + AFTERMATH_S:
            raise explain.mismatch_error(mismatch)  # else the others' calls show who is the odd one

    def raise_failures(self, now: float) -> None:
        """Raises RankError for the cause, not its echo: gloo raises on its partners too."""
        failed = [process for process in self.ranks if process.state in ("failed", "dead")]
        if not failed:
            return
        if self.failure_seen_s is None:
            self.failure_seen_s = now
        dead = [process for process in failed if process.state == "dead"]
        raised = [process for process in failed if process.failure is not None]
        causes = [process for process in raised if not explain.is_consequence(process.failure)]
        if not causes and not dead and now < self.failure_seen_s + AFTERMATH_S:
            return
        self.read_logs()
        if self.log.mismatch is not None:  # gloo aborts or raises on tensors of other sizes
            raise explain.mismatch_error(self.log.mismatch)
        if dead and not causes:
            raise self._exit_error(dead[0])
        raise explain.exception_error(min(causes or raised, key=_failed_at_s))

    def _exit_error(self, process: RankProcess) -> LaunchError:
        pending = list(self.log.pending[process.rank].values())
        return explain.exit_error(process, pending[-1] if pending else None)

    def views(self) -> list[RankView]:
        """What each rank is in at this moment, if only for an instant."""
        return self._views({process.rank for process in self.ranks})

    def _views(self, may_block: Collection[int]) -> list[RankView]:
        views = []
        for process in self.ranks:
            pending = list(self.log.pending[process.rank].values())
            is_candidate = process.state == "running" and process.rank in may_block
            views.append(
                RankView(
                    rank=process.rank,
                    finished=process.is_over,
                    blocked_in=self._blocked_in(process, pending) if is_candidate else (),
                    started=self.log.started[process.rank],
                    receives_from_any=any(c.op == "recv" and c.peer is None for c in pending),
                )
            )
        return views

    def _blocked_in(self, process: RankProcess, pending: list[OpenCall]) -> tuple[OpenCall, ...]:
        waited = tuple(call for call in pending if call.waited)
        # DDP waits inside C++, where no wait is recorded; sends and receives are waited for in
        # Python, so a rank with one open may be doing anything else.
        collectives = tuple(call for call in pending if not call.is_p2p)
        if waited or not collectives or not thread.waits_for_a_lock(process.pid):
            return waited
        return collectives


def _failed_at_s(process: RankProcess) -> float:
    assert process.failure is not None
    return float(process.failure["at"])
