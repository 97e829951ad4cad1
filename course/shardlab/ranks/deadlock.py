"""Finds the ranks that can never continue, from the calls that each rank is in.

A rank that computes may still make any call, so it is live.  A blocked rank is live if its call is
already matched, or if all ranks it waits for are live (one of them, for a receive from any rank).
Every other rank is deadlocked: in a cycle, behind a cycle, behind a rank that has finished, or in a
call with ranks on both ends of a link that is down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

from shardlab.trace.calls import OpenCall


@dataclass(frozen=True)
class RankView:
    rank: int
    finished: bool
    blocked_in: tuple[OpenCall, ...]  # the calls it is blocked in; () while it computes
    started: Counter[Hashable]  # by match_key: number of calls begun
    receives_from_any: bool  # it has an open receive from any rank


@dataclass(frozen=True)
class Wait:
    call: OpenCall
    waits_for: tuple[int, ...]  # () if the call is matched and will complete
    any_will_do: bool = False
    is_cut: bool = False  # matched, but the link to these ranks is down


def wait_of(
    call: OpenCall,
    views: Sequence[RankView],
    groups: Mapping[str, tuple[int, ...]],
    unplugged: Collection[int] = (),
) -> Wait:
    """The ranks that this open call waits for.

    ``unplugged``: ranks on a node whose link is down.
    """
    wait = _matched_wait(call, views, groups)
    if wait.waits_for or not unplugged:
        return wait
    members = groups.get(call.group, ())
    if call.is_p2p:
        members = () if call.peer is None else (call.peer,)
    is_unplugged = call.rank in unplugged
    beyond = tuple(rank for rank in members if (rank in unplugged) != is_unplugged)
    return Wait(call, beyond, is_cut=bool(beyond))


def _matched_wait(
    call: OpenCall, views: Sequence[RankView], groups: Mapping[str, tuple[int, ...]]
) -> Wait:
    if call.op == "recv" and call.peer is None:
        others = tuple(rank for rank in groups.get(call.group, ()) if rank != call.rank)
        sent = any(_sent_unclaimed(views[rank], views[call.rank], call) for rank in others)
        return Wait(call, () if sent else others, any_will_do=True)
    if call.is_p2p:
        assert call.peer is not None
        other = views[call.peer]
        counterpart = "recv" if call.op == "send" else "send"
        begun = other.started[counterpart, call.group, call.rank, call.tag]
        is_matched = begun >= call.seq or (call.op == "send" and other.receives_from_any)
        return Wait(call, () if is_matched else (call.peer,))
    members = groups.get(call.group, ())
    late = (rank for rank in members if views[rank].started["collective", call.group] < call.seq)
    return Wait(call, tuple(late))


def _sent_unclaimed(sender: RankView, receiver: RankView, call: OpenCall) -> bool:
    sent = sender.started["send", call.group, receiver.rank, call.tag]
    claimed = receiver.started["recv", call.group, sender.rank, call.tag]
    return sent > claimed


def stuck(
    views: Sequence[RankView],
    groups: Mapping[str, tuple[int, ...]],
    unplugged: Collection[int] = (),
) -> dict[int, list[Wait]]:
    """{rank: its waits that will never end}; empty if every rank can still continue."""
    waits = {
        view.rank: [wait_of(call, views, groups, unplugged) for call in view.blocked_in]
        for view in views
        if view.blocked_in
    }
    live = {view.rank for view in views if not view.finished and not view.blocked_in}
    grew = True
    while grew:
        grew = False
        for rank, its_waits in waits.items():
            if rank not in live and all(_will_end(wait, live) for wait in its_waits):
                live.add(rank)
                grew = True
    return {rank: its_waits for rank, its_waits in waits.items() if rank not in live}


def _will_end(wait: Wait, live: set[int]) -> bool:
    if wait.is_cut:
        return False
    if not wait.waits_for:
        return True
    wanted = (rank in live for rank in wait.waits_for)
    return any(wanted) if wait.any_will_do else all(wanted)


def find_cycle(waits: Mapping[int, list[Wait]]) -> tuple[int, ...]:
    """The ranks of a cycle, each waiting for the next, lowest first; () if there is no cycle."""
    follows = {
        rank: [other for wait in its_waits for other in wait.waits_for if other in waits]
        for rank, its_waits in waits.items()
    }
    for start in sorted(follows):
        path, seen, rank = [start], {start}, start
        while follows[rank]:
            rank = min(follows[rank])
            if rank in seen:
                cycle = path[path.index(rank) :]
                lowest = cycle.index(min(cycle))
                return tuple(cycle[lowest:] + cycle[:lowest])
            path.append(rank)
            seen.add(rank)
    return ()
