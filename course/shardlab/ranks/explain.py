"""Turns a failed run's state into an error whose first line names the rank at fault."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from shardlab.display.source import is_user_code, locate, quoted
from shardlab.errors import DeadlockError, RankError, RunTimeout, Waiting
from shardlab.ranks.deadlock import RankView, Wait, find_cycle, wait_of
from shardlab.ranks.process import RankProcess
from shardlab.trace.calls import Mismatch, OpenCall

SIGNAL_HINTS = {
    "SIGKILL": "usually by the out-of-memory killer",
    "SIGSEGV": "a crash in compiled code",
    "SIGABRT": "compiled code aborted; in gloo usually because of tensors of different shapes",
    "SIGBUS": "usually because /dev/shm is full",
}
# Raised by gloo and NCCL on ranks whose peer went away: a consequence, never the cause
_CONSEQUENCE = re.compile(r"Connection (closed|reset)|reset by peer|Broken pipe|remote process")


def ranks_text(ranks: Sequence[int]) -> str:
    """ "rank 2", "ranks 0 and 1", "ranks 0, 1 and 3", "ranks 0–5"."""
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 3 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}–{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def each_rank_text(ranks: Sequence[int]) -> str:
    """For a sentence that is worded for one rank: "rank 2", "each of ranks 0 and 1"."""
    return f"{'each of ' if len(ranks) > 1 else ''}{ranks_text(ranks)}"


def call_text(call: OpenCall) -> str:
    if call.is_p2p:
        direction = "to" if call.op == "send" else "from"
        other = "any rank" if call.peer is None else f"rank {call.peer}"
        return f"{call.op} {direction} {other}"
    return f"{call.op} (collective {call.seq} of its group)"


def is_consequence(failure: Mapping[str, Any] | None) -> bool:
    """Whether this exception only reports that another rank went away."""
    if failure is None:
        return False
    return any(_CONSEQUENCE.search(str(cause["message"])) for cause in failure["chain"])


def exception_error(process: RankProcess) -> RankError:
    assert process.failure is not None
    stage, chain = process.failure["stage"], process.failure["chain"]
    kind, message = str(chain[0]["kind"]), str(chain[0]["message"])
    text = f"{kind}: {message}".splitlines()[0].removesuffix(": ")
    if stage == "unpickle":
        text = f"the function or its inputs could not be unpickled on the rank ({text})"
    elif stage == "output":
        text = f"its output can't be sent back ({text})"
    elif kind == "SystemExit":
        text = f"it called sys.exit({message})"
    frames = chain[0]["frames"]
    source = _innermost_line(frames)
    return RankError(
        f"rank {process.rank} failed: {text}{_at(source)}",
        _traceback_text(process.rank, chain),
        rank=process.rank,
        kind=kind,
        message=message,
        source=source,
        in_user_code=bool(frames) and is_user_code(str(frames[-1][0])),
    )


def exit_error(process: RankProcess, last: OpenCall | None) -> RankError:
    """For a rank that ended without an exception: by a signal or os._exit."""
    rank, code = process.rank, process.exit_code or 0
    where = _line_of_stack(process.stack())
    if not where and last is not None:
        where = f"in {call_text(last)}, {_line(last)}"
    if code < 0:
        kind = _signal_name(-code)
        hint = f" ({SIGNAL_HINTS[kind]})" if kind in SIGNAL_HINTS else ""
        headline = f"rank {rank} was killed by {kind}{hint}{_at(where)}"
    else:
        kind = "exit"
        headline = f"rank {rank} exited with code {code} before its function returned{_at(where)}"
    detail = f"Peak memory of the rank: {process.max_rss_bytes / 2**20:,.0f} MiB."
    return RankError(headline, detail, rank=rank, kind=kind)


def log_limit_error(process: RankProcess) -> RankError:
    """For a rank whose log is longer than the limit."""
    message = "it made more calls than can be recorded"
    headline = f"rank {process.rank} failed: {message}"
    return RankError(headline, rank=process.rank, kind="TooLarge", message=message)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def mismatch_error(mismatch: Mismatch) -> DeadlockError:
    """For ranks that entered the same call with different ops, shapes or dtypes."""
    calls = sorted(mismatch.calls, key=lambda call: (call.rank, call.op))
    table = tuple(
        Waiting(call.rank, "waiting", f"{call.op} of {call.what}", (), _line(call))
        for call in calls
    )
    if calls[0].is_p2p:
        send, receive = sorted(calls, key=lambda call: call.op, reverse=True)
        headline = (
            f"rank {receive.rank} receives into {receive.what}, but rank {send.rank} sends "
            f"{send.what}{_at(_line(receive))}"
        )
        return DeadlockError(headline, _table_text(table), table=table)
    kinds = Counter(_kind(call) for call in calls)
    usual = kinds.most_common(1)[0][0]  # with two ranks, the lower rank's
    one = next(call for call in calls if _kind(call) != usual)
    odd = [call.rank for call in calls if _kind(call) == _kind(one)]
    other = next(call for call in calls if _kind(call) == usual)
    rest = [call.rank for call in calls if _kind(call) == usual]
    if one.op != other.op:
        headline = f"{ranks_text(odd)} called {one.op}, but {ranks_text(rest)} called {other.op}"
    else:
        headline = (
            f"{ranks_text(odd)} passed {one.what} to {one.op}, "
            f"but {ranks_text(rest)} passed {other.what}"
        )
    advice = (
        f"Collective {one.seq} of this group must be the same on every rank: "
        "same call, same size, same dtype."
    )
    return DeadlockError(
        f"{headline}  [{_line(one)}]", f"{_table_text(table)}\n\n{advice}", table=table
    )


def _at(where: str) -> str:
    return f"  [{where}]" if where else ""


def _line(call: OpenCall) -> str:
    return quoted(call.filename, call.line)


def _kind(call: OpenCall) -> tuple[str, int, str]:
    return call.op, call.bytes, call.dtype


def deadlock_error(
    waits: Mapping[int, list[Wait]],
    views: Sequence[RankView],
    groups: Mapping[str, tuple[int, ...]],
) -> DeadlockError:
    table = waiting_table(views, groups, {})
    cycle = find_cycle(waits)
    headline = _cycle_headline(cycle, waits) if cycle else _absent_headline(waits, views)
    return DeadlockError(headline, _table_text(table), table=table, cycle=cycle)


def _cycle_headline(cycle: tuple[int, ...], waits: Mapping[int, list[Wait]]) -> str:
    calls = [
        next(wait.call for wait in waits[rank] if cycle[(i + 1) % len(cycle)] in wait.waits_for)
        for i, rank in enumerate(cycle)
    ]
    lines = [line for line in dict.fromkeys(map(_line, calls)) if line]
    at = _at(" | ".join(lines[:2]))
    ops = {call.op for call in calls}
    arrows = " → ".join(map(str, (*cycle, cycle[0])))
    tags = {call.tag for call in calls}
    if ops == {"send"}:
        return f"deadlock: ranks {arrows} all wait in send: each needs the next one to receive{at}"
    if ops == {"recv"}:
        return f"deadlock: ranks {arrows} all wait in recv: each needs the next one to send{at}"
    if ops == {"send", "recv"} and len(tags) > 1:
        return f"deadlock: ranks {arrows} send and receive under different tags {sorted(tags)}{at}"
    inside = ", ".join(f"{call.rank} in {call_text(call)}" for call in calls[:4])
    return f"deadlock: ranks {arrows} wait for each other: {inside}{at}"


def _absent_headline(waits: Mapping[int, list[Wait]], views: Sequence[RankView]) -> str:
    """For waits without a cycle: names the finished rank that they lead to."""
    wait = next(
        wait
        for its_waits in waits.values()
        for wait in its_waits
        if any(r not in waits for r in wait.waits_for)
    )
    call = wait.call
    absent = [rank for rank in wait.waits_for if rank not in waits]
    who = ranks_text(absent)
    if call.op == "recv":
        what = f"finished without sending to rank {call.rank}, which waits in recv"
    elif call.op == "send":
        what = f"finished without receiving from rank {call.rank}, which waits in send"
    else:
        here = [view.rank for view in views if any(_same_call(c, call) for c in view.blocked_in)]
        verb = "waits" if len(here) == 1 else "wait"
        what = f"finished without entering {call.op}, where {ranks_text(here)} {verb}"
    return f"{who} {what}{_at(_line(call))}"


def _same_call(one: OpenCall, other: OpenCall) -> bool:
    return (one.op, one.group, one.seq) == (other.op, other.group, other.seq)


def timeout_error(
    timeout_s: float,
    views: Sequence[RankView],
    groups: Mapping[str, tuple[int, ...]],
    stacks: Mapping[int, str],
    cpu_s: float,
) -> RunTimeout:
    table = waiting_table(views, groups, stacks)
    busy = [row for row in table if row.state == "computing"]
    headline = f"the run did not end within timeout_s={timeout_s:g}"
    if busy:
        where = f"  [{busy[0].source}]" if busy[0].source else ""
        still = "is" if len(busy) == 1 else "are"
        headline += f": {ranks_text([row.rank for row in busy])} {still} still computing{where}"
    detail = (
        _table_text(table) + "\n\nIf the function just needs more time, pass a larger timeout_s."
    )
    return RunTimeout(headline, detail, table=table, cpu_s=cpu_s)


def waiting_table(
    views: Sequence[RankView], groups: Mapping[str, tuple[int, ...]], stacks: Mapping[int, str]
) -> tuple[Waiting, ...]:
    rows = []
    for view in views:
        if view.finished:
            rows.append(Waiting(view.rank, "finished", "", (), ""))
        elif view.blocked_in:
            call = view.blocked_in[0]
            wait = wait_of(call, views, groups)
            where = _line(call)
            rows.append(Waiting(view.rank, "waiting", call_text(call), wait.waits_for, where))
        else:
            rows.append(
                Waiting(view.rank, "computing", "", (), _line_of_stack(stacks.get(view.rank, "")))
            )
    return tuple(rows)


def _table_text(table: Sequence[Waiting]) -> str:
    lines = []
    for row in table[:64]:
        what = row.state if not row.call else f"{row.state} in {row.call}"
        whom = f", for {ranks_text(row.waits_for)}" if row.waits_for else ""
        where = f"   {row.source}" if row.source else ""
        lines.append(f"  rank {row.rank:<3} {what}{whom}{where}")
    return "\n".join(lines)


def _innermost_line(frames: Sequence[Sequence[Any]]) -> str:
    """The innermost of the student's own lines."""
    own = [frame for frame in frames if is_user_code(str(frame[0]))]
    return quoted(str(own[-1][0]), int(own[-1][1])) if own else ""


def _traceback_text(rank: int, chain: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for cause in reversed(chain):
        lines = [f"Traceback on rank {rank} (most recent call last):"]
        for filename, line, name in cause["frames"]:
            where, text = locate(str(filename), int(line))
            lines.append(f"  {where}, in {name}")
            if text:
                lines.append(f"    {text}")
        lines.append(f"{cause['kind']}: {cause['message']}")
        parts.append("\n".join(lines))
    return "\n\nDuring handling of the above exception, another exception occurred:\n\n".join(parts)


_STACK_LINE = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+) in', re.MULTILINE)


def _line_of_stack(stack: str) -> str:
    """The student's innermost line in faulthandler's last stack."""
    last = re.split(r"(?m)^(?=Fatal |Current thread |Stack )", stack)[-1]
    for match in _STACK_LINE.finditer(last):
        if is_user_code(match["file"]):
            return quoted(match["file"], int(match["line"]))
    return ""
