"""Checks whether a run can still succeed; raises the error that explains why not."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Mapping, Sequence

from shardlab.errors import LaunchError
from shardlab.linux import thread
from shardlab.ranks import explain, explain_hang
from shardlab.ranks.deadlock import RankView, Wait, stuck
from shardlab.ranks.process import RankProcess
from shardlab.ranks.trust import Trust
from shardlab.trace.calls import NEW_GROUP, CallLog, OpenCall

BLOCKED_S = 0.5  # a rank that waits and used no processor time for this long is blocked
ACTIVE_SHARE = 0.5  # of a processor; a rank that polls a store uses far less
SETTLE_S = 0.4  # wait this long after the first failure, to separate its cause from its effects
# A rank idle for this long is taken to have stopped.  For untrusted code the blamed rank must not
# depend on timing, so only idleness counts, and no time limit except the run's.
QUIET_S = {Trust.OWN: 0.1, Trust.UNTRUSTED: 0.3}


class FailureDetector:
    """Inspects the ranks of a run and the log of its calls; changes neither."""

    def __init__(self, ranks: Sequence[RankProcess], log: CallLog, trust: Trust) -> None:
        self.ranks = ranks  # grows while the run starts
        self.log = log
        self.trust = trust
        self.mismatch_seen_s: float | None = None
        self.failure_seen_s: float | None = None
        self.unplugged: Collection[int] = ()  # ranks on a node whose link is down

    def raise_deadlock(self, now: float) -> None:
        """Raises DeadlockError if some rank can never continue."""
        self.raise_mismatch(now)
        waits = self._stuck(now)
        if not waits or self.failure_seen_s is not None or self._overriding_error is not None:
            return
        others = [process for process in self.ranks if process.rank not in waits]
        if self.trust is Trust.OWN or self._are_quiet(others, now):
            raise explain_hang.deadlock_error(waits, self.views(), self.log, self.unplugged)

    def raise_at_timeout(self, now: float) -> None:
        """The run's time is up: raises the failure or deadlock seen so far, if any, although other
        ranks are still running."""
        self.raise_mismatch(now, at_once=True)
        self.raise_failures(now, at_once=True)
        if waits := self._stuck(now):
            raise explain_hang.deadlock_error(waits, self.views(), self.log, self.unplugged)

    def raise_mismatch(self, now: float, at_once: bool = False) -> None:
        """Raises DeadlockError if ranks entered a call with different ops or tensors."""
        mismatch = self.log.mismatch
        if mismatch is None or self._overriding_error is not None:
            return
        if self.mismatch_seen_s is None:
            self.mismatch_seen_s = now
        # Once all ranks are in the call, it is clear which one differs
        is_complete = len(mismatch.calls) == len(self.log.members(mismatch.calls[0]))
        is_clear = is_complete and self.trust is Trust.OWN
        if at_once or is_clear or self._has_settled(now, self.mismatch_seen_s):
            raise explain_hang.mismatch_error(mismatch, self.log, self._over)

    def raise_failures(self, now: float, at_once: bool = False) -> None:
        """Raises RankError for the cause: after it, gloo raises on the rank's peers too."""
        failed = [process for process in self.ranks if process.state in ("failed", "dead")]
        overriding = self._overriding_error
        if not failed and overriding is None:
            return
        if self.failure_seen_s is None:
            self.failure_seen_s = now
        if not at_once and not self._has_settled(now, self.failure_seen_s):
            return
        if overriding is not None:
            raise overriding
        if self.log.mismatch is not None:  # gloo aborts or raises on tensors of different sizes
            raise explain_hang.mismatch_error(self.log.mismatch, self.log, self._over)
        raise self._error_of(min(failed, key=_cause_order))

    @property
    def _overriding_error(self) -> LaunchError | None:
        """A forged message, or a log that is too long: reported before anything that it may have
        caused, whichever was seen first."""
        for process in self.ranks:
            if process.forged:
                return explain.exception_error(process)
        for process in self.ranks:
            if self.trust is Trust.UNTRUSTED and process.log.dropped:
                return explain.log_limit_error(process)
        return None

    @property
    def _over(self) -> set[int]:
        return {process.rank for process in self.ranks if process.is_over}

    def _has_settled(self, now: float, since_s: float) -> bool:
        """Whether the failure at ``since_s`` has had time to affect the other ranks."""
        if any(process.exit_is_unreported for process in self.ranks):  # it may be the cause
            return False
        if now >= since_s + SETTLE_S and self.trust is Trust.OWN:
            return True
        return self._are_quiet(self.ranks, now)

    def _are_quiet(self, ranks: Iterable[RankProcess], now: float) -> bool:
        # Every rank is checked every time, because is_quiet records when it last ran
        quiet = [process.is_quiet(now, QUIET_S[self.trust]) for process in ranks]
        return all(quiet)

    def _error_of(self, process: RankProcess) -> LaunchError:
        if process.failure is not None:
            return explain.exception_error(process)
        pending = list(self.log.pending[process.rank].values())
        return explain.exit_error(process, pending[-1] if pending else None, self.log)

    def views(self) -> list[RankView]:
        """The calls each rank is in now, even if only briefly."""
        return self._views({process.rank for process in self.ranks})

    def _stuck(self, now: float) -> Mapping[int, list[Wait]]:
        idle = {process.rank for process in self.ranks if process.idle_s(now) >= BLOCKED_S}
        # A rank that waits in new_group asks the store again and again, so it is never idle.
        in_new_group = {
            call.rank
            for pending in self.log.pending
            for call in pending.values()
            if call.op == NEW_GROUP and now - call.start_s >= BLOCKED_S
        }
        return stuck(self._views(idle | in_new_group), self.log.groups, self.unplugged)

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

    def wanted_ns(self) -> dict[int, dict[str, int]]:
        """By rank and thread: nanoseconds that it has run or waited for a processor."""
        return {each.rank: thread.wanted_ns_by_thread(each.pid) for each in self.ranks}

    def active(self, before: Mapping[int, Mapping[str, int]], for_s: float) -> set[int]:
        """Ranks with a thread that has wanted a processor most of the last ``for_s`` seconds."""
        least_ns = ACTIVE_SHARE * for_s * 1e9
        return {
            rank
            for rank, wanted_ns in self.wanted_ns().items()
            if any(ns - before[rank].get(each, 0) > least_ns for each, ns in wanted_ns.items())
        }

    def _blocked_in(self, process: RankProcess, pending: list[OpenCall]) -> tuple[OpenCall, ...]:
        waited = tuple(call for call in pending if call.waited)
        # DDP waits inside C++, where no wait is recorded.  Waits for sends and receives are always
        # recorded in Python, so a rank with one open may be doing anything else.
        collectives = tuple(call for call in pending if not call.is_p2p)
        if waited or not collectives or not thread.waits_for_a_lock(process.pid):
            return waited
        return collectives


def _cause_order(process: RankProcess) -> tuple[int, int]:
    """The smaller, the more likely this rank caused the others' failures.

    An abort may be gloo's reaction to a peer that went away; other deaths, and exceptions about
    something else, are causes.  Order in time says nothing if all ranks do the same.
    """
    if process.failure is not None:
        place = 4 if explain.is_consequence(process.failure) else 2
    elif process.exit_code == -signal.SIGABRT:
        place = 3
    else:
        place = 0 if process.exit_code == -signal.SIGKILL else 1
    return place, process.rank
