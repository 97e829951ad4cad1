"""Judges the results of a case: passed or not, and which mistake."""

from __future__ import annotations

import builtins
import logging
import re
import signal
from collections import Counter, defaultdict
from dataclasses import dataclass, replace

import torch.distributed as dist

from autograder.evaluation.limited import in_limited_process, is_unusual
from autograder.evaluation.verdict import RESOURCE_LIMIT, TAMPERING, CaseResult, Violation
from autograder.evaluation.wording import deterministic, forbidden_call, printable, with_cells
from autograder.exercise import NAMED_MISTAKES, SENT, Attempt, Exercise, Finding
from autograder.exercise.attempt import shorten
from autograder.exercise.compare import size_of
from autograder.exercise.form import Named
from autograder.exercise.signs import calls_closed_function
from autograder.guest.answer import STUB
from shardlab.errors import DeadlockError, LaunchError, RankError, RunTimeout
from shardlab.ranks.supervise import MAX_PRINTED_BYTES
from shardlab.ranks.trust import Trust
from shardlab.ranks.wording import ranks_text
from shardlab.run import Run

log = logging.getLogger(__name__)

# An output larger than MAX_TIMES the expected one + MAX_BYTES is not diagnosed.
MAX_TIMES, MAX_BYTES = 100, 1_000_000
TOO_MUCH = "the answer's outputs or calls are far more than any correct answer's"
PRINTED_BYTES = MAX_PRINTED_BYTES[Trust.UNTRUSTED]
UNSEEN_BYTES = 4096  # TCP options on a busy machine; measured below 1,000 bytes
STORED_BYTES = 16_384  # per rank, for addresses; a new group of four ranks takes 150 per rank
OVERHEAD_BYTES = 256  # gloo's own messages for one send or receive; measured about 150


@dataclass(frozen=True)
class Judged:
    """``named``: the mistakes that explain wrong outputs; None if the outputs are not wrong.

    `decide` reports one that explains the other cases as well, or else what a sign found, or else
    ``otherwise``.
    """

    result: CaseResult
    named: tuple[Named, ...] | None = None
    by_sign: Finding | None = None
    otherwise: Finding | None = None


def judge(exercise: Exercise, attempt: Attempt, suspects: frozenset[str] = frozenset()) -> Judged:
    """A case passes if all ranks' outputs are correct, all budgets are kept and all calls allowed.

    ``suspects``: mistakes that explain the earlier cases. If one explains this case too, the
    outputs of the other mistakes are not computed: each may cost a training run.
    """
    case, run = attempt.case, attempt.run
    difference = exercise.difference(attempt) if attempt.error is None else None
    right = attempt.error is None and difference is None
    forbidden = _forbidden_call(exercise, attempt)
    # A forbidden call that was recorded is a mistake, not tampering.
    tampering = _forged(attempt) or (None if forbidden else _wire_mismatch(exercise, attempt))
    forbidden = forbidden or tampering
    unrecorded = _wrong_record(exercise, attempt)
    # A broken rule may be why fewer bytes were sent than recorded, so it comes first.
    finding, named = forbidden or _broken_rule(exercise, attempt, right) or unrecorded, None
    by_sign = None
    passed = right and finding is None and all(spent.fits for spent in attempt.spent)
    failure = _finding_of(attempt.error, attempt.trust) if attempt.error else None
    otherwise = failure or difference or _over_budget(attempt)
    if not passed and finding is None:
        by_sign, named = _named_by_exercise(exercise, attempt, suspects)
        certain = (each.finding for each in named or () if each.is_certain)
        finding = next(certain, by_sign)
    result = CaseResult(
        name=case.name,
        hidden=case.hidden,
        weight=case.weight,
        passed=passed,
        outputs_right=right and not tampering,
        # meaningless for an incomplete run
        sent_bytes=() if run is None or attempt.error else tuple(run.traffic.sent_by_rank.tolist()),
        # measurements from outside vary from run to run
        spent=()
        if attempt.error
        else tuple(each for each in attempt.spent if not each.from_outside),
        record_is_right=unrecorded is None,
        violation=TAMPERING if tampering else _resource_limit(exercise, attempt.error),
    )
    if passed:
        return Judged(result)
    result = explained(result, finding or otherwise, attempt.trust)
    return Judged(result, named, by_sign, otherwise)


def judge_within_limits(
    exercise: Exercise, attempt: Attempt, suspects: frozenset[str] = frozenset()
) -> Judged:
    """The same, in a process with limits if the outputs or calls are unlike any correct answer's.
    Otherwise here, where references stay cached."""
    if attempt.trust is Trust.OWN or not is_unusual(attempt):
        return judge(exercise, attempt, suspects)
    judged = in_limited_process(lambda: judge(exercise, attempt, suspects))
    if judged is not None:
        found: Judged = judged
        return found
    case = attempt.case
    beyond = _general("the check", "needed more time or memory than allowed, because " + TOO_MUCH)
    result = CaseResult(case.name, case.hidden, case.weight, passed=False, violation=RESOURCE_LIMIT)
    return Judged(explained(result, beyond, attempt.trust))


def certain_in(named: tuple[Named, ...] | None) -> frozenset[str]:
    return frozenset(each.finding.mistake for each in named or () if each.is_certain)


def explained(result: CaseResult, finding: Finding | None, trust: Trust) -> CaseResult:
    if finding is None:
        return result
    clean = deterministic if trust is Trust.UNTRUSTED else lambda text: printable(with_cells(text))
    return replace(
        result,
        mistake=clean(finding.mistake),
        diagnosis=clean(finding.text(result.hidden)),
        instructor_note=clean(finding.text(hidden=False)),
        quotes=finding.quotes,
    )


# Messages of exceptions that a resource limit causes, not the student's logic.
_OUT_OF_MEMORY = re.compile("not enough memory|can't allocate memory|Cannot allocate memory")
_AT_A_LIMIT = re.compile(
    f"{_OUT_OF_MEMORY.pattern}|can't start new thread"
    "|Resource temporarily unavailable|No space left on device|Too many open files"
    "|File too large|Disk quota exceeded"
)
_KINDS_AT_A_LIMIT = {"SIGKILL", "SIGXCPU", "SIGXFSZ", "SIGBUS", "MemoryError", "TooLarge"}


def _general(who: str, mistake: str, in_full: str = "") -> Finding:
    """``who`` reveals nothing about a case, so it is shown for a hidden case as well."""
    return Finding(who, mistake, who_if_hidden=who, in_full=in_full)


def _resource_limit(exercise: Exercise, error: LaunchError | None) -> Violation:
    """A run that waited until its time was over is a wrong answer, not one at a limit."""
    if isinstance(error, RunTimeout):
        printed = [*error.run.stdout, *error.run.stderr] if error.run else []
        was_cut = any(len(text.encode()) > PRINTED_BYTES for text in printed)
        computes = any(row.state == "computing" for row in error.table)
        was_hit = was_cut or computes or error.cpu_s > exercise.timeout_s / 2
    else:
        was_hit = isinstance(error, RankError) and bool(
            error.kind in _KINDS_AT_A_LIMIT or _AT_A_LIMIT.search(error.message)
        )
    return RESOURCE_LIMIT if was_hit else ""


def is_unwritten(attempt: Attempt) -> bool:
    """Whether the answer is still the stub that students start from: ``raise NotImplementedError``.

    Libraries raise this error as well, and say what is not implemented.
    """
    error = attempt.error
    return (
        isinstance(error, RankError)
        and error.kind == "NotImplementedError"
        and (error.message == STUB or (error.in_user_code and not error.message))
    )


def _named_by_exercise(
    exercise: Exercise, attempt: Attempt, suspects: frozenset[str]
) -> tuple[Finding | None, tuple[Named, ...] | None]:
    """The first sign's finding, and the named mistakes if no earlier sign found anything.

    A later sign's finding is reported if no named mistake explains all cases.
    """
    if isinstance(attempt.error, RankError) and attempt.error.kind == "TooLarge":
        return None, None  # its record is incomplete
    wanted = max(map(size_of, attempt.expected))
    if any(size_of(output) > MAX_TIMES * wanted + MAX_BYTES for output in attempt.outputs):
        return None, None  # diagnosing it could take forever
    order = (
        exercise.signs if NAMED_MISTAKES in exercise.signs else (*exercise.signs, NAMED_MISTAKES)
    )
    named: tuple[Named, ...] | None = None
    for sign in (calls_closed_function, *order):
        try:
            if sign is NAMED_MISTAKES:
                named = exercise.named(attempt, suspects) if suspects else None
                if not certain_in(named):
                    named = exercise.named(attempt)
            elif finding := sign(attempt):
                return finding, named
        except Exception:  # outputs come from student processes and may be of any form
            # A warning would show our source lines in the student's notebook.
            log.info("%s: a sign failed", exercise.name, exc_info=True)
    return None, named


def _forbidden_call(exercise: Exercise, attempt: Attempt) -> Finding | None:
    allows, run = exercise.allows, attempt.run
    if allows is None or run is None:
        return None
    call = next((call for call in run.calls if call.op not in allows), None)
    if call is None:
        return None
    name = call.op if hasattr(dist, call.op) else "another operation"
    return Finding(f"rank {call.rank}", forbidden_call(name, allows), call.source)


def _broken_rule(exercise: Exercise, attempt: Attempt, right: bool) -> Finding | None:
    """Of a run in which no rank failed: else the calls may end where another rank failed."""
    if attempt.error is not None:
        return None
    for rule in exercise.rules:
        try:
            if found := rule(attempt):
                return found
        except Exception:  # wrong outputs may be of any form
            if right:
                raise
            log.info("%s: a rule failed", exercise.name, exc_info=True)
    return None


def _forged(attempt: Attempt) -> Finding | None:
    """Messages on a rank's channel to the checker, which student code never reaches by accident."""
    if not (isinstance(attempt.error, RankError) and attempt.error.kind == "Forged"):
        return None
    # It may write to other ranks' channels as well, and the rank that fails first varies.
    who = f"rank {attempt.error.rank}" if attempt.trust is Trust.OWN else "a rank"
    return Finding(who, "wrote to the checker's private channel")


def _wire_mismatch(exercise: Exercise, attempt: Attempt) -> Finding | None:
    """Calls are recorded next to student code, bytes are counted outside: they must agree."""
    run = attempt.run
    if run is None or attempt.error is not None:
        return None
    if exercise.is_point_to_point:  # a collective's bytes depend on the backend
        if run.traffic.collectives:  # recorded ones were already found to be forbidden
            mistake = "called a collective that was seen on the wire but not recorded"
            return _general("the ranks", mistake)
        if mismatch := _call_mismatch(run):
            return mismatch
    if _bypassed_the_count(run):  # without the number, which varies from run to run
        return _general("the ranks", "moved bytes outside of torch.distributed")
    # Ranks rendezvous through a small store, at the start and for each new process group.
    if run.traffic.stored_bytes > STORED_BYTES * run.world_size:
        return _general("the ranks", "passed data through the rendezvous store")
    return None


def _call_mismatch(run: Run) -> Finding | None:
    for rank, sent_bytes in enumerate(run.traffic.sent_by_rank.tolist()):
        calls = run.calls_of(rank)
        sends = [call for call in calls if call.op == "send"]
        recorded_bytes = sum(call.bytes for call in sends)
        ended_bytes = sum(call.bytes for call in sends if call.end_s is not None)
        evidence = f"{sent_bytes:,} on the wire, {recorded_bytes:,} in calls"
        if sent_bytes > 1.01 * recorded_bytes + OVERHEAD_BYTES * (len(calls) + 1):
            return Finding(f"rank {rank}", "moved bytes that no recorded call explains", evidence)
        if ended_bytes > 1.01 * sent_bytes + OVERHEAD_BYTES:
            return Finding(f"rank {rank}", "recorded sends that were never on the wire", evidence)
    return None


def _bypassed_the_count(run: Run) -> bool:
    """Whether bytes crossed the ranks' network through sockets that are not their groups'."""
    if run.traffic.unseen_bytes is None:
        return False
    return run.traffic.unseen_bytes > UNSEEN_BYTES + 0.005 * int(run.traffic.sent_bytes.sum())


def _wrong_record(exercise: Exercise, attempt: Attempt) -> Finding | None:
    """Calls and live bytes are recorded next to student code; bytes on the wire and process memory
    are measured from outside.  A difference is not tampering: numpy arrays or another thread's
    tensors also cause one."""
    if attempt.unmeasured and _was_refused(attempt.error):
        mistake = "stores data where memory cannot be measured"
        return _general("the run", mistake, attempt.error.headline if attempt.error else "")
    if attempt.error is not None or attempt.run is None:
        return None
    is_wanted = exercise.records_memory(attempt.case)
    if is_wanted and not all(memory.is_recorded for memory in attempt.run.memory):
        return _general("the run", "has lost its record of live tensors")
    if attempt.unmeasured:
        mistake = "bypassed the memory measurement: do the work in the calling thread"
        return _general("the run", mistake)
    measured = [spent for spent in attempt.spent if spent.from_outside and not spent.fits]
    recorded = [spent for spent in attempt.spent if not spent.from_outside]
    if not measured or not all(spent.fits for spent in recorded if spent.heading != SENT):
        return None  # if the record exceeds its budget as well, other diagnoses apply
    ranks = measured[0].ranks_over or measured[0].ranks_under
    return Finding(f"rank {min(ranks)}", measured[0].contradicts)


def _was_refused(error: LaunchError | None) -> bool:
    """Whether the sandbox refused a system call.  Where process memory is measured, correct answers
    need none of these."""
    if not isinstance(error, RankError) or error.kind != "PermissionError":
        return False
    return "Operation not permitted" in error.message


def _over_budget(attempt: Attempt) -> Finding | None:
    for spent in attempt.spent:
        for rank in spent.ranks_over:
            used, limit = spent.used[rank], spent.limit[rank]
            times = f", {used / limit:.3g} × as much" if limit > 0 and used >= 1.005 * limit else ""
            evidence = f"{used:,} {spent.unit}".rstrip() + f", {limit:,} are allowed{times}"
            return Finding(f"rank {rank}", f"is over its budget: {spent.label}", evidence)
        for rank in spent.ranks_under:
            mistake = "sent less than any correct answer must: did data take another path?"
            if spent.unit != "B":
                mistake = f"does not keep its budget: {spent.label}"
            used_text = f"{spent.used[rank]:,} {'bytes' if spent.unit == 'B' else spent.unit}"
            evidence = f"{used_text.rstrip()}, expected at least {spent.least[rank]:,}"
            return Finding(f"rank {rank}", mistake, evidence)
    return None


def _finding_of(error: LaunchError, trust: Trust) -> Finding:
    """The error's own message, for errors that no sign of the exercise recognizes.

    In grading without anything that depends on timing, such as the current line of an endless loop.
    """
    if isinstance(error, DeadlockError):
        return _unreceived_tag(error) or _deadlock(error)
    if isinstance(error, RunTimeout):
        in_full = error.headline if trust is Trust.OWN else ""
        return _general("the run", "did not finish within its time limit", in_full)
    if isinstance(error, RankError):
        kind = error.kind if _is_known(error.kind) else "an error"
        if trust is Trust.UNTRUSTED:
            # Ranks share a memory limit: which rank exceeds it, and whether its allocation fails or
            # it is killed, varies from run to run.
            if error.kind in ("SIGKILL", "MemoryError") or _OUT_OF_MEMORY.search(error.message):
                return Finding("a rank", "needed more memory than allowed, or was killed")
            if _may_hit_any_rank(error.kind):
                return Finding("a rank", f"stopped with {kind}")
        in_full = error.headline
        if error.message and not error.source and error.kind != "TooLarge":
            # none of the answer's lines was running
            why = shorten(f"{error.kind}: {error.message}".splitlines()[0])
            what = "the check cannot call the answer, or cannot use what it returned"
            if "is not plain data" in error.message:
                what = "the check cannot use what the answer returned"
            if re.match(r"[Ff]unction \w+Backward returned ", error.message):
                what = "autograd cannot use what the answer's backward returned"
            in_full = f"rank {error.rank}: {what} ({why})"
        return Finding(f"rank {error.rank}", f"stopped with {kind}", in_full=in_full)
    return _general("the run", "failed", error.headline)


_OWN_CRASHES = {"SIGSEGV", "SIGILL", "SIGFPE", "SIGBUS"}


def _may_hit_any_rank(kind: str) -> bool:
    """Whether the signal came from another process, the machine, or gloo after another rank exited:
    then the rank it hit varies from run to run."""
    return kind.startswith(("SIG", "signal ")) and kind not in _OWN_CRASHES


def _is_known(kind: str) -> bool:
    """The name of a student's own exception class could leak a hidden case's inputs."""
    builtin = getattr(builtins, kind, None)
    is_exception = isinstance(builtin, type) and issubclass(builtin, BaseException)
    return is_exception or kind in signal.Signals.__members__


def _unreceived_tag(error: DeadlockError) -> Finding | None:
    """A rank waits for a message under one tag, while its peer has sent one under another."""
    calls = error.run.calls if error.run else []
    tags: dict[tuple[str, int, int | None], Counter[int]] = defaultdict(Counter)
    for call in calls:
        tags[call.op, call.rank, call.peer][call.tag] += 1
    unclaimed: dict[tuple[int, int], list[int]] = {}  # tags, by receiver and sender
    for call in calls:
        if call.op != "recv" or call.end_s is not None or call.peer is None:
            continue
        ends = call.rank, call.peer
        sent, received = tags["send", call.peer, call.rank], tags["recv", call.rank, call.peer]
        if ends not in unclaimed:
            unclaimed[ends] = sorted((sent - received).keys())
        others = unclaimed[ends]
        if others and call.tag not in sent:  # else it is not the tag, but perhaps the shape
            evidence = (
                f"it receives from rank {call.peer} under tag {call.tag}, but rank {call.peer} "
                f"sends to it under tag {others[0]}; {call.source}"
            )
            mistake = "waits for a tag that its neighbor does not send: both must use the same tag"
            return Finding(f"rank {call.rank}", mistake, evidence)
    return None


def _waits_in_recv(run: Run | None, waiting: int, cycle: tuple[int, ...]) -> str:
    """Of ranks that all wait in recv."""
    still_open = [call for call in run.calls if call.end_s is None] if run else []
    if cycle and not any(call.op == "send" for call in still_open):
        return (
            "call recv first and wait for each other to send: start the send with isend, receive, "
            "then wait for the send"
        )
    wait = "wait" if waiting > 1 else "waits"
    return f"{wait} in recv for data that is never sent: every recv needs a send from that neighbor"


def _deadlock(error: DeadlockError) -> Finding:
    waiting = [row for row in error.table if row.state == "waiting"]
    calls = {row.call.split(" ")[0] for row in error.table if row.call}
    if calls == {"send"} and error.cycle:
        mistake = (
            "call send first and wait for each other to receive: start the send with isend, "
            "receive, then wait for the send"
        )
    elif calls == {"recv"}:
        mistake = _waits_in_recv(error.run, len(waiting), error.cycle)
    else:
        waits = any(row.waits_for for row in waiting)
        mistake = f"make calls that do not match{', and wait forever' if waits else ''}"
        return _general("the ranks", mistake, error.headline)
    who = ranks_text([row.rank for row in waiting])
    who_if_hidden = "neighbors" if len(waiting) > 1 else "a rank"
    return Finding(who, mistake, waiting[0].source, who_if_hidden=who_if_hidden)
