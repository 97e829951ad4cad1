"""Turns calls that do not match, or never end, into an error whose first line says why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from shardlab.display.source import locate, share_loop
from shardlab.errors import DeadlockError, RunTimeout, Waiting
from shardlab.ranks.deadlock import RankView, Wait, find_cycle, wait_of
from shardlab.ranks.stacks import blocked_in, line_of_stack
from shardlab.ranks.wording import (
    at,
    call_text,
    group_text,
    handling_text,
    line_text,
    on_nodes_text,
    op_text,
    ranks_text,
)
from shardlab.trace.calls import NEW_GROUP, CallLog, Mismatch, OpenCall

EVERY_GROUP = (
    "Every rank must make every group, in the same order, also the groups that it is not in."
)
ONE_ROOT = "{} is one rank, so every rank of the group passes the same number."
LARGER_TIMEOUT = (
    "A loop that never ends looks like this. If the function just needs more time, pass a larger "
    "timeout_s."
)


def mismatch_error(mismatch: Mismatch, log: CallLog, over: Collection[int] = ()) -> DeadlockError:
    """For ranks that entered the same call with different operations, tensors or options.

    ``over``: ranks that have returned or failed.
    """
    calls = sorted(mismatch.calls, key=lambda call: (call.rank, call.op))
    table = tuple(
        Waiting(
            call.rank,
            "called" if call.end_s is not None or call.rank in over else "waiting",
            _with_tensor(call, log),
            (),
            line_text(call),
        )
        for call in calls
    )
    if calls[0].is_p2p:
        send, receive = sorted(calls, key=lambda call: call.op, reverse=True)
        headline = (
            f"rank {receive.rank} receives into {receive.what}, but rank {send.rank} sends "
            f"{send.what}{at(line_text(receive))}"
        )
        return DeadlockError(headline, _table_text(table, log), table=table)
    kinds = Counter(map(_kind, calls))
    usual = kinds.most_common(1)[0][0]  # with two ranks, the lower rank's
    one = next(call for call in calls if _kind(call) != usual)
    other = next(call for call in calls if _kind(call) == usual)
    if raised := next(filter(None, map(handling_text, calls)), ""):
        headline = raised
    elif divergence := _divergence(one, other, calls, log):
        headline = divergence
    elif one.op == NEW_GROUP:
        lines = dict.fromkeys((line_text(other), line_text(one)))
        headline = f"call {one.seq} of new_group: {_by_option(calls)}{at(' | '.join(lines))}"
    else:
        odd = on_nodes_text([call.rank for call in calls if _kind(call) == _kind(one)], log)
        rest = on_nodes_text([call.rank for call in calls if _kind(call) == usual], log)
        headline = f"{_difference(odd, one, rest, other)}{at(line_text(one))}"
    detail = [_table_text(table, log), _advice(one, other, log), *_first_divergence(one, log)]
    return DeadlockError(headline, "\n\n".join(detail), table=table)


def _with_tensor(call: OpenCall, log: CallLog) -> str:
    if call.op == NEW_GROUP:
        return f"{NEW_GROUP} of {call.options}"
    options = f" with {call.options}" if call.options else ""
    what = f" of {call.what}" if call.dtype else ""
    return f"{op_text(call)}{what}{options}{group_text(call, log)}"


def _kind(call: OpenCall) -> tuple[str, tuple[int, ...], str, str]:
    return call.op, call.shape, call.dtype, call.options


def _by_option(calls: Sequence[OpenCall]) -> str:
    """ "ranks 0 and 1 named [0, 1], ranks 2 and 3 named [2, 3]" """
    named: dict[str, list[int]] = {}
    for call in calls:
        named.setdefault(call.options, []).append(call.rank)
    return ", ".join(f"{ranks_text(ranks)} named {option}" for option, ranks in named.items())


def _difference(odd: str, one: OpenCall, rest: str, other: OpenCall) -> str:
    if one.op != other.op:
        return f"{odd} called {op_text(one)}, but {rest} called {op_text(other)}"
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return f"{odd} passed {one.what} to {op_text(one)}, but {rest} passed {other.what}"
    with_one, with_other = (call.options or "the default layout" for call in (one, other))
    return f"{odd} called {op_text(one)} with {with_one}, but {rest} with {with_other}"


def _advice(one: OpenCall, other: OpenCall, log: CallLog) -> str:
    if one.op == NEW_GROUP:
        return EVERY_GROUP
    must = (
        f"Collective {one.seq}{group_text(one, log) or ' of this group'} must be the same on every "
        "rank: same call, same shape, same dtype, same options."
    )
    roots = {option.split("=")[0] for call in (one, other) for option in call.options.split(", ")}
    rooted = [ONE_ROOT.format(name) for name in ("src", "dst") if name in roots]
    has_other_root = one.op == other.op and one.options != other.options
    return " ".join([must, *(rooted if has_other_root else [])])


def _divergence(one: OpenCall, other: OpenCall, calls: Sequence[OpenCall], log: CallLog) -> str:
    """Where one rank has already been at the other's line: it left a loop earlier, or skipped a
    call.  "" otherwise."""
    for ahead, behind in ((one, other), (other, one)):
        if _line(behind) in _earlier(ahead, log) and _line(ahead) not in _earlier(behind, log):
            there, here = _place(ahead, behind), _place(behind, ahead)
            first = [call.rank for call in calls if _line(call) == _line(ahead)]
            last = [call.rank for call in calls if _line(call) == _line(behind)]
            have, are = ("has" if len(first) == 1 else "have"), ("is" if len(last) == 1 else "are")
            text = f"{ranks_text(first)} {have} gone on to {there} while "
            text += f"{ranks_text(last)} {are} still at {here}"
            same_file = ahead.filename == behind.filename
            if same_file and share_loop(ahead.filename, ahead.line, behind.line):
                # Nobody knows which rank is an iteration further.
                text = f"collective {one.seq} is {there} on {ranks_text(first)}, but {here} on "
                text += ranks_text(last)
            return f"{text}{at(f'{line_text(ahead)} | {line_text(behind)}')}"
    return ""


def _earlier(call: OpenCall, log: CallLog) -> set[tuple[str, int]]:
    """The lines of the rank's collectives in this group before this one."""
    before = log.collectives_of(call.rank, call.group)
    return {_line(other) for other in before if other.seq < call.seq}


def _line(call: OpenCall) -> tuple[str, int]:
    return call.filename, call.line


def _place(call: OpenCall, other: OpenCall) -> str:
    if call.filename == other.filename:
        return f"line {call.line}"
    return locate(call.filename, call.line)[0]


def _first_divergence(one: OpenCall, log: CallLog) -> Iterator[str]:
    """The first collective of this group at which the ranks' lines differ, if it came earlier."""
    ranks = log.members(one)
    for calls in zip(*(log.collectives_of(rank, one.group) for rank in ranks), strict=False):
        first = calls[0]
        if first.seq >= one.seq:
            return
        other = next((call for call in calls if _line(call) != _line(first)), None)
        if other is not None:
            number = f"The ranks' lines first differ at collective {first.seq}"
            yield (
                f"{number}: rank {first.rank} called {op_text(first)} in {line_text(first)}, "
                f"rank {other.rank} {op_text(other)} in {line_text(other)}."
            )
            return


def deadlock_error(
    waits: Mapping[int, list[Wait]],
    views: Sequence[RankView],
    log: CallLog,
    unplugged: Collection[int] = (),
) -> DeadlockError:
    """``unplugged``: the ranks on a node whose link is down."""
    table = waiting_table(views, log, {}, unplugged=unplugged)
    cycle = find_cycle(waits)
    calls = [wait.call for its_waits in waits.values() for wait in its_waits]
    if cut := [wait for its_waits in waits.values() for wait in its_waits if wait.is_cut]:
        headline = f"node {log.nodes[min(unplugged)]} is unplugged: {_cut_text(cut, log)}"
        return DeadlockError(headline, _table_text(table, log), table=table)
    headline = next(filter(None, map(handling_text, calls)), "")
    if not headline:
        headline = (
            _cycle_headline(cycle, waits, log) if cycle else _absent_headline(waits, views, log)
        )
    detail = [_table_text(table, log)]
    if any(call.op == NEW_GROUP for call in calls):
        detail.append(EVERY_GROUP)
    elif not cycle and not calls[0].is_p2p:
        detail += [_how_many(calls[0], log), *_first_divergence(calls[0], log)]
    return DeadlockError(headline, "\n\n".join(detail), table=table, cycle=cycle)


def _how_many(call: OpenCall, log: CallLog) -> str:
    """ "Rank 1 has made 17 collectives; ranks 0, 2 and 3 have made 16." """
    ranks_with: dict[int, list[int]] = {}
    for rank in log.members(call):
        ranks_with.setdefault(len(log.collectives_of(rank, call.group)), []).append(rank)
    (most, _), *_ = by_number = sorted(ranks_with.items(), reverse=True)
    made = [
        f"{ranks_text(ranks)} {'has' if len(ranks) == 1 else 'have'} made {number}"
        for number, ranks in by_number
    ]
    made[0] += f" collective{'' if most == 1 else 's'}{group_text(call, log)}"
    text = "; ".join(made)
    return f"{text[0].upper()}{text[1:]}."


def _cut_text(cut: Sequence[Wait], log: CallLog) -> str:
    """ "rank 0 on node 0 waits for rank 2 on node 1 in recv from rank 2  [cell 3, line 4: …]" """
    call = cut[0].call
    same = [wait for wait in cut if _same_call(wait.call, call)]
    waiting = [wait.call.rank for wait in same if wait.waits_for == cut[0].waits_for]
    verb = "waits" if len(waiting) == 1 else "wait"
    who = on_nodes_text(waiting, log)
    whom = on_nodes_text(cut[0].waits_for, log)
    return f"{who} {verb} for {whom} in {call_text(call, log)}{at(line_text(call))}"


def _cycle_headline(cycle: tuple[int, ...], waits: Mapping[int, list[Wait]], log: CallLog) -> str:
    calls = [
        next(wait.call for wait in waits[rank] if cycle[(i + 1) % len(cycle)] in wait.waits_for)
        for i, rank in enumerate(cycle)
    ]
    lines = [line for line in dict.fromkeys(map(line_text, calls)) if line]
    where = at(" | ".join(lines[:2]))
    ops = {call.op for call in calls}
    names = [f"{rank} (node {log.nodes[rank]})" if log.nodes else str(rank) for rank in cycle]
    ranks = f"ranks {' → '.join((*names, names[0]))}"
    tags = {call.tag for call in calls}
    if ops == {"send"}:
        return f"deadlock: {ranks} all wait in send: each needs the next one to receive{where}"
    if ops == {"recv"}:
        return f"deadlock: {ranks} all wait in recv: each needs the next one to send{where}"
    if ops == {"send", "recv"} and len(tags) > 1:
        return f"deadlock: {ranks} send and receive under different tags {sorted(tags)}{where}"
    inside = ", ".join(f"{call.rank} in {call_text(call, log)}" for call in calls[:4])
    return f"deadlock: {ranks} wait for each other: {inside}{where}"


def _absent_headline(
    waits: Mapping[int, list[Wait]], views: Sequence[RankView], log: CallLog
) -> str:
    """For waits without a cycle: names the finished rank that they lead to."""
    wait = next(
        wait
        for its_waits in waits.values()
        for wait in its_waits
        if any(r not in waits for r in wait.waits_for)
    )
    call = wait.call
    absent = [rank for rank in wait.waits_for if rank not in waits]
    who, other = on_nodes_text(absent, log), on_nodes_text([call.rank], log)
    if call.op == "recv":
        what = f"finished without sending to {other}, which waits in recv"
    elif call.op == "send":
        what = f"finished without receiving from {other}, which waits in send"
    else:
        here = [view.rank for view in views if any(_same_call(c, call) for c in view.blocked_in)]
        verb = "waits" if len(here) == 1 else "wait"
        entered = f"{op_text(call)}{group_text(call, log)}"
        what = f"finished without entering {entered}, where {on_nodes_text(here, log)} {verb}"
    return f"{who} {what}{at(line_text(call))}"


def _same_call(one: OpenCall, other: OpenCall) -> bool:
    return (one.op, one.group, one.seq) == (other.op, other.group, other.seq)


def timeout_error(
    timeout_s: float,
    views: Sequence[RankView],
    log: CallLog,
    stacks: Mapping[int, str],
    active: Collection[int],
    cpu_s: float,
) -> RunTimeout:
    """``active``: ranks of which a thread or a child process used the processor to the end.

    Only these may need more time; the others wait for something that no time will bring.
    """
    table = waiting_table(views, log, stacks, active)
    headline = f"the run did not end within timeout_s={timeout_s:g}"
    for state, text in (("blocked", "blocked"), ("computing", "still computing")):
        if rows := [row for row in table if row.state == state]:
            inside = f" in {rows[0].call}" if rows[0].call else ""
            is_are = "is" if len(rows) == 1 else "are"
            who = on_nodes_text([row.rank for row in rows], log)
            headline += f": {who} {is_are} {text}{inside}{at(rows[0].source)}"
            break
    detail = [_table_text(table, log), *([LARGER_TIMEOUT] if active else [])]
    return RunTimeout(headline, "\n\n".join(detail), table=table, cpu_s=cpu_s)


def waiting_table(
    views: Sequence[RankView],
    log: CallLog,
    stacks: Mapping[int, str],
    active: Collection[int] | None = None,
    unplugged: Collection[int] = (),
) -> tuple[Waiting, ...]:
    """``active``: see timeout_error; None: all ranks outside of a call count as computing."""
    rows = []
    for view in views:
        stack = stacks.get(view.rank, "")
        if view.finished:
            last = next((c for c in reversed(log.calls) if c.rank == view.rank), None)
            after = f"{call_text(last, log)}   {line_text(last)}" if last else ""
            rows.append(Waiting(view.rank, "finished", "", (), "", after=after))
        elif view.blocked_in:
            call = view.blocked_in[0]
            wait = wait_of(call, views, log.groups, unplugged)
            text, where = call_text(call, log), line_text(call)
            rows.append(Waiting(view.rank, "waiting", text, wait.waits_for, where))
        elif active is None or view.rank in active:
            rows.append(Waiting(view.rank, "computing", "", (), line_of_stack(stack)))
        else:
            inside, where = blocked_in(stack), line_of_stack(stack)
            rows.append(Waiting(view.rank, "blocked", inside, (), where))
    return tuple(rows)


def _table_text(table: Sequence[Waiting], log: CallLog) -> str:
    lines = []
    for row in table[:64]:
        joint = " " if row.state == "called" else " in "
        what = row.state if not row.call else f"{row.state}{joint}{row.call}"
        what += f"; its last call: {row.after}" if row.after else ""
        whom = f", for {on_nodes_text(row.waits_for, log)}" if row.waits_for else ""
        where = f"   {row.source}" if row.source else ""
        node = f" on node {log.nodes[row.rank]:<3}" if log.nodes else ""
        lines.append(f"  rank {row.rank:<3}{node} {what}{whom}{where}")
    return "\n".join(lines)
