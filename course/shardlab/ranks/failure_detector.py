"""Finds out whether a run can still succeed; raises the error that names why it can't."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Mapping, Sequence

from shardlab.errors import LaunchError
from shardlab.ranks import explain, thread
from shardlab.ranks.deadlock import RankView, Wait, stuck
from shardlab.ranks.process import RankProcess
from shardlab.ranks.trust import Trust
from shardlab.trace.calls import CallLog, OpenCall

STILL_S = 0.5  # a rank that used no processor for this long while it waits is blocked
AFTERMATH_S = 0.4  # after a first sign of failure: time for the others', to tell cause from effect
# A rank at rest for this long does nothing more.  Which rank is blamed for untrusted code must not
# depend on timing: there only rest counts, and no time limit but the run's.
QUIET_S = {Trust.OWN: 0.1, Trust.UNTRUSTED: 0.3}


class FailureDetector:
    """Looks at the ranks of a run and at the log of its calls; changes neither."""

    def __init__(self, ranks: Sequence[RankProcess], log: CallLog, trust: Trust) -> None:
        self.ranks = ranks  # grows while the run starts
        self.log = log
        self.trust = trust
        self.mismatch_seen_s: float | None = None
        self.failure_seen_s: float | None = None

    def raise_deadlock(self, now: float) -> None:
        """Raises DeadlockError where some rank can never go on."""
        self.raise_mismatch(now)
        waits = self._stuck(now)
        if not waits or self.failure_seen_s is not None or self._overriding_error is not None:
            return
        others = [process for process in self.ranks if process.rank not in waits]
        if self.trust is Trust.OWN or self._are_quiet(others, now):
            raise explain.deadlock_error(waits, self.views(), self.log.groups)

    def raise_at_timeout(self, now: float) -> None:
        """The run's time is up: raises the failure or deadlock seen so far, if any, although other
        ranks are still at work."""
        self.raise_mismatch(now, at_once=True)
        self.raise_failures(now, at_once=True)
        if waits := self._stuck(now):
            raise explain.deadlock_error(waits, self.views(), self.log.groups)

    def raise_mismatch(self, now: float, at_once: bool = False) -> None:
        """Raises DeadlockError where ranks met with different calls or tensors."""
        mismatch = self.log.mismatch
        if mismatch is None or self._overriding_error is not None:
            return
        if self.mismatch_seen_s is None:
            self.mismatch_seen_s = now
        # All that should meet in it, to tell who is the odd one
        is_whole = len(mismatch.calls) == len(self.log.members(mismatch.calls[0]))
        is_clear = is_whole and self.trust is Trust.OWN
        if at_once or is_clear or self._has_settled(now, self.mismatch_seen_s):
            raise explain.mismatch_error(mismatch)

    def raise_failures(self, now: float, at_once: bool = False) -> None:
        """Raises RankError for the cause, not its echo: gloo raises on its partners too."""
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
        if self.log.mismatch is not None:  # gloo aborts or raises on tensors of other sizes
            raise explain.mismatch_error(self.log.mismatch)
        raise self._error_of(min(failed, key=_cause_order))

    @property
    def _overriding_error(self) -> LaunchError | None:
        """A forged message, or else a log too long to be followed: it comes before all that may
        have followed from it, whichever was seen first."""
        for process in self.ranks:
            if process.forged:
                return explain.exception_error(process)
        for process in self.ranks:
            if self.trust is Trust.UNTRUSTED and process.log.dropped:
                return explain.overfull_error(process)
        return None

    def _has_settled(self, now: float, since_s: float) -> bool:
        """Whether what went wrong at ``since_s`` has had its effect on the other ranks."""
        if any(process.has_ended_untold for process in self.ranks):  # it may be the cause of it
            return False
        if now >= since_s + AFTERMATH_S and self.trust is Trust.OWN:
            return True
        return self._are_quiet(self.ranks, now)

    def _are_quiet(self, ranks: Iterable[RankProcess], now: float) -> bool:
        # Each is looked at each time
        quiet = [process.is_quiet(now, QUIET_S[self.trust]) for process in ranks]
        return all(quiet)

    def _error_of(self, process: RankProcess) -> LaunchError:
        if process.failure is not None:
            return explain.exception_error(process)
        pending = list(self.log.pending[process.rank].values())
        return explain.exit_error(process, pending[-1] if pending else None)

    def views(self) -> list[RankView]:
        """What each rank is in at this moment, if only for an instant."""
        return self._views({process.rank for process in self.ranks})

    def _stuck(self, now: float) -> Mapping[int, list[Wait]]:
        still = {process.rank for process in self.ranks if process.still_s(now) >= STILL_S}
        return stuck(self._views(still), self.log.groups)

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


def _cause_order(process: RankProcess) -> tuple[int, int]:
    """The smaller, the more likely it is what the others' failures come from.

    An abort may be gloo's answer to a partner that went away; other deaths, and exceptions that
    speak of something else, are causes.  Which came first is no guide where all do the same.
    """
    if process.failure is not None:
        place = 4 if explain.is_consequence(process.failure) else 2
    elif process.exit_code == -signal.SIGABRT:
        place = 3
    else:
        place = 0 if process.exit_code == -signal.SIGKILL else 1
    return place, process.rank
