"""What the sockets of a set of ranks have carried up to a moment, read from outside."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from shardlab.ranks.client import Channel
from shardlab.ranks.process import RankProcess
from shardlab.trace import gloo_collectives, wire

Counts = dict[wire.Connection, tuple[int, int]]  # connection -> (rank, bytes written)


@dataclass(frozen=True)
class Reading:
    """``crossed_bytes``: on the ranks' loopback in no socket that was open then; None where
    loopback is not theirs alone.  ``stored_bytes``: in the store by which ranks meet.
    ``collectives``: their messages on the loopback; None where nobody looks."""

    counts: Counts
    crossed_bytes: int | None
    stored_bytes: int
    collectives: int | None = None

    def between(self, ranks: int) -> Counts:
        """Of the connections that the first so many ranks have among themselves."""
        inside = {at: (rank, n) for at, (rank, n) in self.counts.items() if rank < ranks}
        return {
            (local, remote): counted
            for (local, remote), counted in inside.items()
            if (remote, local) in inside or (remote, local) not in self.counts
        }


class Meter:
    """Reads it again and again. Whose a socket is is asked once, as long as no new ones appear."""

    def __init__(
        self,
        channel: Channel,
        ranks: Sequence[RankProcess],
        store_fd: int,
        seeks_collectives: bool = False,
    ) -> None:
        self.channel, self.ranks, self.store_fd = channel, ranks, store_fd
        self.owner: dict[int, int] = {}  # socket's inode -> rank
        self.tap = channel.tap if seeks_collectives else None
        self.collectives = 0  # that it has counted so far
        if self.tap is not None:
            gloo_collectives.start(self.tap)

    def read(self) -> Reading:
        stored_bytes = os.fstat(self.store_fd).st_size
        try:
            all_bytes = _loopback_bytes(self.channel)
            sockets = wire.sockets(self.channel.netlink)
        except OSError:  # a machine that does not show its sockets: `launch` then uses the calls
            return Reading({}, None, stored_bytes, self._collectives())
        if not self.owner.keys() >= {each.inode for each in sockets}:
            self.owner = {
                inode: process.rank
                for process in self.ranks
                if process.pid is not None
                for inode in wire.inodes_of(process.pid)
            }
        counts = {
            each.connection: (self.owner[each.inode], each.written_bytes)
            for each in sockets
            if each.inode in self.owner
        }
        crossed_bytes = None
        if all_bytes is not None:
            crossed_bytes = all_bytes - sum(each.sent_bytes for each in sockets)
        return Reading(counts, crossed_bytes, stored_bytes, self._collectives())

    def _collectives(self) -> int | None:
        if self.tap is None:
            return None
        self.collectives += gloo_collectives.count_new(self.tap)
        return self.collectives


def _loopback_bytes(channel: Channel) -> int | None:
    if channel.interfaces is None:
        return None
    try:
        return wire.loopback_payload_bytes(channel.interfaces)
    except OSError:
        return None


def strayed_bytes(before: Reading, after: Reading, ranks: int) -> int:
    """What went to or came from ranks beyond the first so many, which have no part."""
    inside = after.between(ranks)
    return sum(
        count - before.counts.get(at, (0, 0))[1]
        for at, (_, count) in after.counts.items()
        if at not in inside
    )
