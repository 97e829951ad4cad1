"""From what a case left behind to passed or not, and the name of the mistake."""

from __future__ import annotations

import builtins
import logging
import re
import signal
from dataclasses import dataclass, replace

import torch.distributed as dist

from autograder.evaluation.verdict import RESOURCE_LIMIT, TAMPERING, CaseResult, Trouble
from autograder.evaluation.wording import deterministic, shown
from autograder.exercise import NAMED, SENT, Attempt, Exercise, Finding
from autograder.exercise.compare import size_of
from autograder.exercise.form import Named
from autograder.exercise.signs import calls_the_library
from shardlab.errors import DeadlockError, LaunchError, RankError, RunTimeout
from shardlab.ranks.explain import ranks_text
from shardlab.ranks.trust import Trust
from shardlab.run import Run

log = logging.getLogger(__name__)

MOST_TIMES, MOST_BYTES = 100, 1_000_000  # that an output may be larger, and still be looked into
UNSEEN_BYTES = 4096  # options of TCP on a busy machine: below 1,000 bytes were seen
STORED_BYTES = 16_384  # of each rank's addresses: a new group of four ranks takes 150 of each
OVERHEAD_BYTES = 256  # at most, of gloo's own messages for one send or receive (about 150)


NO_SUSPECTS: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Judged:
    """``named``: the mistakes that explain wrong outputs, None where outputs are not what failed.

    `decide` takes one that explains the other cases as well, else says what ``otherwise`` says.
    """

    result: CaseResult
    named: tuple[Named, ...] | None = None
    otherwise: Finding | None = None


def judge(exercise: Exercise, attempt: Attempt, suspects: frozenset[str] = NO_SUSPECTS) -> Judged:
    """A case passes with right outputs on every rank, within budgets, by allowed calls.

    ``suspects``: mistakes that explain the earlier cases. Where one explains this case too, the
    outputs of the others, which can cost a training run each, are not computed.
    """
    case, run = attempt.case, attempt.run
    difference = exercise.difference(attempt) if attempt.error is None else None
    right = attempt.error is None and difference is None
    forbidden = _forbidden_call(exercise, attempt)
    # Bytes of a call that was recorded are explained, forbidden though it is.
    tampering = _forged(attempt) or (None if forbidden else _against_the_wire(exercise, attempt))
    forbidden = forbidden or tampering
    unfollowed = _unfollowed_memory(exercise, attempt)
    finding, named = forbidden or unfollowed, None
    passed = right and finding is None and all(spent.fits for spent in attempt.spent)
    failure = _failure(attempt.error, attempt.trust) if attempt.error else None
    otherwise = failure or difference or _over_budget(attempt)
    if not passed and finding is None:
        finding, named = _named_by_exercise(exercise, attempt, suspects)
        if finding is None and difference is not None:
            finding = next((each.finding for each in named or () if each.is_certain), None)
    result = CaseResult(
        name=case.name,
        hidden=case.hidden,
        weight=case.weight,
        passed=passed,
        outputs_right=right and not tampering,
        # of half a run they say nothing
        sent_bytes=() if run is None or attempt.error else tuple(run.traffic.sent_by_rank.tolist()),
        # what is seen from outside is a little different each time
        spent=()
        if attempt.error
        else tuple(each for each in attempt.spent if not each.from_outside),
        believed=unfollowed is None,
        trouble=TAMPERING if tampering else _limit_met(attempt.error),
    )
    if passed:
        return Judged(result)
    return Judged(explained(result, finding or otherwise, attempt.trust), named, otherwise)


def certain_in(named: tuple[Named, ...] | None) -> frozenset[str]:
    return frozenset(each.finding.mistake for each in named or () if each.is_certain)


def explained(result: CaseResult, finding: Finding | None, trust: Trust) -> CaseResult:
    if finding is None:
        return result
    word = deterministic if trust is Trust.UNTRUSTED else shown
    return replace(
        result,
        mistake=word(finding.mistake),
        diagnosis=word(finding.text(result.hidden)),
        instructor_note=word(finding.text(hidden=False)),
    )


# What an exception says when a budget of the machine's, not the student's logic, has ended a rank.
_OUT_OF_MEMORY = re.compile("not enough memory|can't allocate memory|Cannot allocate memory")
_AT_A_LIMIT = re.compile(
    f"{_OUT_OF_MEMORY.pattern}|can't start new thread"
    "|Resource temporarily unavailable|No space left on device|Too many open files"
    "|File too large|Disk quota exceeded"
)
_KINDS_AT_A_LIMIT = {"SIGKILL", "SIGXCPU", "SIGXFSZ", "SIGBUS", "MemoryError", "TooLarge"}


def _of_all(who: str, mistake: str, in_full: str = "") -> Finding:
    """``who`` says nothing of a case: it stays where the case is hidden."""
    return Finding(who, mistake, anyone=who, in_full=in_full)


def _limit_met(error: LaunchError | None) -> Trouble:
    met = isinstance(error, RunTimeout) or (
        isinstance(error, RankError)
        and (error.kind in _KINDS_AT_A_LIMIT or _AT_A_LIMIT.search(error.message))
    )
    return RESOURCE_LIMIT if met else ""


def is_unwritten(attempt: Attempt) -> bool:
    """True where the answer still is the stub that students start from."""
    return isinstance(attempt.error, RankError) and attempt.error.kind == "NotImplementedError"


def _named_by_exercise(
    exercise: Exercise, attempt: Attempt, suspects: frozenset[str]
) -> tuple[Finding | None, tuple[Named, ...] | None]:
    """What the first sign says; or else the named mistakes, where outputs are wrong."""
    if isinstance(attempt.error, RankError) and attempt.error.kind == "TooLarge":
        return None, None  # what is known of it ends somewhere in the middle
    wanted = max(map(size_of, attempt.expected))
    if any(size_of(output) > MOST_TIMES * wanted + MOST_BYTES for output in attempt.outputs):
        return None, None  # to look into something unlike the right answer could take forever
    order = exercise.signs if NAMED in exercise.signs else (*exercise.signs, NAMED)
    named: tuple[Named, ...] | None = None
    for sign in (calls_the_library, *order):
        try:
            if sign is NAMED:
                named = exercise.named(attempt, suspects) if suspects else None
                if not certain_in(named):
                    named = exercise.named(attempt)
                if certain_in(named):
                    return None, named
            elif finding := sign(attempt):
                return finding, None
        except Exception:  # outputs come from student processes and may be of any form
            # A warning would show in the student's notebook, with lines of ours.
            log.info("%s: a sign failed", exercise.name, exc_info=True)
    return None, named


def _forbidden_call(exercise: Exercise, attempt: Attempt) -> Finding | None:
    allows, run = exercise.allows, attempt.run
    if allows is None or run is None:
        return None
    call = next((call for call in run.calls if call.op not in allows), None)
    if call is None:
        return None
    allowed = " and ".join(sorted(allows, reverse=True)) or "no communication"
    name = call.op if hasattr(dist, call.op) else "something else"
    return Finding(f"rank {call.rank}", f"calls {name}: build it from {allowed}", call.source)


def _forged(attempt: Attempt) -> Finding | None:
    """Messages on the line by which a rank reports: student code never comes by it by accident."""
    if not (isinstance(attempt.error, RankError) and attempt.error.kind == "Forged"):
        return None
    # Noise goes to other lines as well, and another rank may die of it before its own turn.
    who = f"rank {attempt.error.rank}" if attempt.trust is Trust.OWN else "a rank"
    return Finding(who, "wrote to the line by which ranks report to the checker")


def _against_the_wire(exercise: Exercise, attempt: Attempt) -> Finding | None:
    """Calls are recorded beside student code, bytes are counted outside: they have to agree."""
    run = attempt.run
    if run is None or attempt.error is not None:
        return None
    if exercise.is_point_to_point:  # what a collective puts on the wire is its backend's choice
        if run.traffic.collectives:  # one that is in the calls is forbidden, and no case for this
            mistake = "called a collective that is on the wire and not among the recorded calls"
            return _of_all("the ranks", mistake)
        if unlike := _unlike_the_calls(run):
            return unlike
    if _went_past_the_count(run):  # how much is told a little differently each time
        return _of_all("the ranks", "moved bytes past torch.distributed")
    # Ranks find each other by a small store, at the start and for each new group of ranks.
    if run.traffic.stored_bytes > STORED_BYTES * run.world_size:
        return _of_all("the ranks", "passed data through the store that ranks meet by")
    return None


def _unlike_the_calls(run: Run) -> Finding | None:
    for rank, sent_bytes in enumerate(run.traffic.sent_by_rank.tolist()):
        calls = [call for call in run.calls if call.rank == rank]
        sends = [call for call in calls if call.op == "send"]
        recorded_bytes = sum(call.bytes for call in sends)
        ended_bytes = sum(call.bytes for call in sends if call.end_s is not None)
        evidence = f"{sent_bytes:,} on the wire, {recorded_bytes:,} in calls"
        if sent_bytes > 1.01 * recorded_bytes + OVERHEAD_BYTES * (len(calls) + 1):
            return Finding(f"rank {rank}", "moved bytes that no recorded call explains", evidence)
        if ended_bytes > 1.01 * sent_bytes + OVERHEAD_BYTES:
            return Finding(f"rank {rank}", "recorded sends that never were on the wire", evidence)
    return None


def _went_past_the_count(run: Run) -> bool:
    """Whether bytes crossed the ranks' network in sockets that nobody counted: opened and closed by
    hand.  Groups that a rank makes and ends close theirs in all honesty: then nothing can be said.
    """
    if run.traffic.unseen_bytes is None:
        return False
    if any(not call.is_p2p and len(call.group) != run.world_size for call in run.calls):
        return False
    return run.traffic.unseen_bytes > UNSEEN_BYTES + 0.005 * int(run.traffic.sent_bytes.sum())


def _unfollowed_memory(exercise: Exercise, attempt: Attempt) -> Finding | None:
    """Live bytes are recorded beside student code, and what the process has in use is seen from
    outside.  No tampering: data in numpy's arrays, or another thread's tensors, do it as well."""
    if attempt.error is not None or attempt.run is None:
        return None
    if exercise.memory and not all(memory.is_told for memory in attempt.run.memory):
        return _of_all("the run", "has lost its record of live tensors")
    if attempt.unmeasured:
        mistake = "went past where its memory is measured: work in the thread that calls you"
        return _of_all("the run", mistake)
    of_memory = [spent for spent in attempt.spent if spent.heading != SENT]
    outside = [spent for spent in of_memory if spent.from_outside and not spent.fits]
    if not outside or not all(spent.fits for spent in of_memory if not spent.from_outside):
        return None  # or it is in the record as well, and a diagnosis names it
    mistake = (
        "holds more memory than the tensors that are counted: keep data in tensors, and work "
        "on them in the thread that calls you"
    )
    return Finding(f"rank {min(outside[0].ranks_over)}", mistake)


def _over_budget(attempt: Attempt) -> Finding | None:
    for spent in attempt.spent:
        for rank in spent.ranks_over:
            times = f"{spent.used[rank] / max(spent.limit[rank], 1):.2f} times what is allowed"
            return Finding(f"rank {rank}", f"is over its budget: {spent.label}", times)
        for rank in spent.ranks_under:
            mistake = "sent less than any right answer has to: did data travel another way?"
            evidence = f"{spent.used[rank]:,} bytes, at least {spent.least[rank]:,}"
            return Finding(f"rank {rank}", mistake, evidence)
    return None


def _failure(error: LaunchError, trust: Trust) -> Finding:
    """What an error says for itself, where no diagnosis of the exercise knew it.

    For a grade, nothing that depends on timing, such as the line that an endless loop was at.
    """
    if isinstance(error, DeadlockError):
        return _deadlock(error)
    if isinstance(error, RunTimeout):
        in_full = error.headline if trust is Trust.OWN else ""
        return _of_all("the run", "was still at work when its time was up", in_full)
    if isinstance(error, RankError):
        kind = error.kind if _is_known(error.kind) else "an error"
        if trust is Trust.UNTRUSTED:
            # Ranks share what memory there is: which of them asked for too much, and whether it was
            # refused or killed for it, is another matter each time.
            if error.kind in ("SIGKILL", "MemoryError") or _OUT_OF_MEMORY.search(error.message):
                return Finding("a rank", "needed more memory than it may have, or was killed")
            if _may_hit_any_rank(error.kind):
                return Finding("a rank", f"stopped with {kind}")
        return Finding(f"rank {error.rank}", f"stopped with {kind}", in_full=error.headline)
    return _of_all("the run", "failed", error.headline)


_OWN_CRASHES = {"SIGSEGV", "SIGILL", "SIGFPE", "SIGBUS"}


def _may_hit_any_rank(kind: str) -> bool:
    """Whether it was sent by another process or the machine, or by gloo as one rank goes before
    the others: which rank it has hit says nothing, and the next time it is another."""
    return kind.startswith(("SIG", "signal ")) and kind not in _OWN_CRASHES


def _is_known(kind: str) -> bool:
    """A class that student code named could carry a hidden case's inputs out in its name."""
    builtin = getattr(builtins, kind, None)
    is_exception = isinstance(builtin, type) and issubclass(builtin, BaseException)
    return is_exception or kind in signal.Signals.__members__


def _deadlock(error: DeadlockError) -> Finding:
    waiting = [row for row in error.table if row.state == "waiting"]
    calls = {row.call.split(" ")[0] for row in waiting}
    if calls == {"send"}:
        mistake = (
            "call send first and wait for each other to receive: start the send with isend, "
            "receive, then wait for the send"
        )
    elif calls == {"recv"}:
        mistake = (
            "wait in recv for what is never sent: every receive needs a send by that neighbour"
        )
    else:
        mistake = "make calls that do not fit together, and wait forever"
        return _of_all("the ranks", mistake, error.headline)
    who = ranks_text([row.rank for row in waiting])
    return Finding(who, mistake, waiting[0].source, anyone="neighbours")
