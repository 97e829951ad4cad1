"""Matches calls: a send with its receive, or the calls of one collective on all its ranks.

A send and its receive wait for each other. What a collective can move before all its ranks have
begun it depends on its algorithm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from shardlab.run.call import Call


@dataclass(frozen=True)
class MatchedCalls:
    """calls: of one message or collective, in the order in which they began.

    all_began_s: when the last one began; None if a rank never made its call.
    """

    calls: tuple[Call, ...]
    all_began_s: float | None

    @property
    def sender(self) -> Call | None:
        return self._one("send")

    @property
    def receiver(self) -> Call | None:
        return self._one("recv")

    def transfer_start_s(self, call: Call) -> float | None:
        """When one of the calls stopped waiting for the others; None if it never did.

        A small message may leave before its receive has begun: then the send did not wait.
        """
        if self.all_began_s is None or call.end_s is None:
            return None
        return self.all_began_s if self.all_began_s <= call.end_s else call.start_s

    def _one(self, op: str) -> Call | None:
        return next((call for call in self.calls if call.op == op), None)


def match_calls(calls: Iterable[Call]) -> list[MatchedCalls]:
    """All groups of matched calls in a run, ordered by the first call of each."""
    together: dict[Hashable, list[Call]] = defaultdict(list)
    for call in sorted(calls, key=lambda call: call.start_s):
        together[_key(call)].append(call)
    return [_matched(members) for members in together.values()]


def _matched(members: list[Call]) -> MatchedCalls:
    first = members[0]
    expected = 2 if first.is_p2p else max(len(first.group), 1)
    all_began_s = members[-1].start_s if len(members) >= expected else None
    return MatchedCalls(tuple(members), all_began_s)


def _key(call: Call) -> Hashable:
    if not call.is_p2p:
        return call.group, call.seq
    if call.peer is None:  # a receive from any rank that never got anything
        return id(call)
    ends = (call.rank, call.peer) if call.op == "send" else (call.peer, call.rank)
    return call.group, call.seq, call.tag, ends
