"""How errors of a run name ranks, calls and lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from shardlab.display.source import locate, quoted
from shardlab.run import Call
from shardlab.run.unwaited import never_waited_text
from shardlab.trace.calls import NEW_GROUP, CallLog, OpenCall

# torch renamed these; a call is named as the line has it
_OLD_NAMES = {
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}


def ranks_text(ranks: Sequence[int]) -> str:
    """ "rank 2", "ranks 0 and 1", "ranks 0, 1 and 3", "ranks 0–5"."""
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 3 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}–{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def on_nodes_text(ranks: Sequence[int], log: CallLog) -> str:
    """`ranks_text`; with several nodes "rank 2 on node 0", "ranks 0 and 1 on node 0 and rank 5 on
    node 1"."""
    if not log.nodes:
        return ranks_text(ranks)
    on: dict[int, list[int]] = {}
    for rank in sorted(ranks):
        on.setdefault(log.nodes[rank], []).append(rank)
    return " and ".join(f"{ranks_text(members)} on node {node}" for node, members in on.items())


def each_rank_text(ranks: Sequence[int]) -> str:
    """For a sentence that is worded for one rank: "rank 2", "each of ranks 0 and 1"."""
    return f"{'each of ' if len(ranks) > 1 else ''}{ranks_text(ranks)}"


def op_text(call: OpenCall) -> str:
    old = _OLD_NAMES.get(call.op, "")
    return old if old and old in locate(call.filename, call.line)[1] else call.op


def call_text(call: OpenCall, log: CallLog) -> str:
    if call.is_p2p:
        direction = "to" if call.op == "send" else "from"
        other = "any rank" if call.peer is None else f"rank {call.peer}"
        return f"{call.op} {direction} {other}{group_text(call, log)}"
    if call.op == NEW_GROUP:
        return f"{NEW_GROUP} of {call.options} (call {call.seq} of {NEW_GROUP})"
    return f"{op_text(call)}{group_text(call, log)} (collective {call.seq} of its group)"


def group_text(call: OpenCall, log: CallLog) -> str:
    """ " in group [0, 1]"; "" for the group of all ranks.

    Of several groups with the same ranks, the number is that of their first use.
    """
    members = log.groups.get(call.group, ())
    if call.op == NEW_GROUP or not members:
        return ""
    same = [name for name, ranks in log.groups.items() if ranks == members and name != NEW_GROUP]
    number = same.index(call.group) + 1
    if len(members) == log.world_size and number == 1:
        return ""
    which = f", number {number} of {len(same)}" if len(same) > 1 else ""
    return f" in group {list(members)}{which}"


def line_text(call: OpenCall) -> str:
    """ "cell 5, line 3: dist.recv(t, 0)" """
    return quoted(call.filename, call.line)


def handling_text(call: OpenCall) -> str:
    """ "rank 1 raised ValueError: … [line 8], and while handling it called barrier"; "" if the call
    is not in an `except` or `finally`."""
    if call.handling is None:
        return ""
    error, filename, line = call.handling
    where = at(quoted(filename, line)).strip()
    then = f"and while handling it called {op_text(call)}{at(line_text(call))}"
    return f"rank {call.rank} raised {error} {where}, {then}"


def at(where: str) -> str:
    """The end of a headline."""
    return f"  [{where}]" if where else ""


def lucky_notes(calls: Sequence[Call], log: CallLog) -> list[str]:
    """What went well this time, but need not, one line each."""
    return [*_lonely_groups(log), *_unwaited(calls), *_changed(log)]


def _lonely_groups(log: CallLog) -> Iterator[str]:
    for made in log.unmatched.values():
        if made[0].op == NEW_GROUP:
            who, members = ranks_text([call.rank for call in made]), made[0].options
            must = "every rank must make every group, also one that it is not in"
            yield f"only {who} made the group {members}: {must}{at(line_text(made[0]))}"


def _unwaited(calls: Sequence[Call]) -> list[str]:
    """One line for each line of code that started calls for which nobody waited."""
    ranks_at: dict[tuple[str, str], set[int]] = {}
    made = Counter((call.rank, call.source) for call in calls)
    missed = Counter((call.rank, call.source) for call in calls if not call.waited)
    for call in calls:
        if not call.waited and call.source:
            where = f"{call.source}: {call.code}" if call.code else call.source
            key = call.rank, call.source
            few = f" ({missed[key]} of its {made[key]} calls)" if missed[key] < made[key] else ""
            ranks_at.setdefault((never_waited_text(call) + few, at(where)), set()).add(call.rank)
    return [
        f"{each_rank_text([*ranks])} {text}{where}" for (text, where), ranks in ranks_at.items()
    ]


def _changed(log: CallLog) -> list[str]:
    ranks_at: dict[str, set[int]] = {}
    for call in log.calls:
        if call.changed:
            ranks_at.setdefault(line_text(call), set()).add(call.rank)
    why = "changes the tensor of an isend before it has waited: either value may arrive"
    return [f"{each_rank_text([*ranks])} {why}{at(line)}" for line, ranks in ranks_at.items()]
