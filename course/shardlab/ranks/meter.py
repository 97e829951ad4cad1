"""Byte counters of the ranks' sockets, read from outside."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shardlab.ranks.client import Channel
from shardlab.ranks.process import RankProcess
from shardlab.trace import gloo_collectives, wire

Counts = dict[wire.Connection, tuple[int, int]]  # connection -> (rank, bytes written)


@dataclass(frozen=True)
class Reading:
    """``network_bytes``: all so far; None if others use this loopback too.  ``stored_bytes``: size
    of the rendezvous store.  ``collectives``: messages of collectives on the network; None if not
    counted.  ``passed``: by connection, the bytes of its sockets so far, open and closed ones,
    whoever has them.  ``known``: the connections that some rank has or had at a reading.
    ``closed``: bytes written to closed sockets so far."""

    counts: Counts
    network_bytes: int | None
    stored_bytes: int
    collectives: int | None = None
    passed: Mapping[wire.Connection, int] = field(default_factory=dict)
    known: Collection[wire.Connection] = ()
    closed: Mapping[wire.Connection, int] = field(default_factory=dict)

    def between(self, ranks: int) -> Counts:
        """Counts of the connections among ranks 0 to ``ranks`` − 1."""
        inside = {at: (rank, n) for at, (rank, n) in self.counts.items() if rank < ranks}
        return {
            (local, remote): counted
            for (local, remote), counted in inside.items()
            if (remote, local) in inside or (remote, local) not in self.counts
        }


class Meter:
    """Takes readings. Socket owners are looked up again only when new sockets appear."""

    def __init__(
        self,
        channel: Channel,
        ranks: Sequence[RankProcess],
        store_fd: int,
        counts_collectives: bool = False,
    ) -> None:
        self.channel, self.ranks, self.store_fd = channel, ranks, store_fd
        self.owner: dict[int, int] = {}  # socket's inode -> rank
        self.known: set[wire.Connection] = set()
        self.closed_sent = Counter[wire.Connection]()  # by sockets that have been closed
        self.closed_written = Counter[wire.Connection]()
        taps = [each.tap for each in channel.networks if each.tap and counts_collectives]
        self.taps = taps if len(taps) == len(channel.networks) else []
        self.collectives = 0  # counted so far
        for tap in self.taps:
            gloo_collectives.start(tap)

    def read(self) -> Reading:
        stored_bytes = os.fstat(self.store_fd).st_size
        try:
            all_bytes = _network_bytes(self.channel)
            sockets = self._sockets()
        except OSError:  # sockets can't be read here: `launch` computes traffic from the calls
            return Reading({}, None, stored_bytes, self._collectives())
        self._find_owners(sockets)
        counts = {
            each.connection: (self.owner[each.inode], each.written_bytes)
            for each in sockets
            if each.inode in self.owner
        }
        self.known.update(counts)
        self.note_closed()
        passed = Counter(self.closed_sent)
        for each in sockets:
            passed[each.connection] += each.sent_bytes
        closed = dict(self.closed_written)
        collectives = self._collectives()
        return Reading(
            counts, all_bytes, stored_bytes, collectives, passed, frozenset(self.known), closed
        )

    def _sockets(self) -> list[wire.Socket]:
        if not self.channel.networks:
            return wire.sockets()
        return [
            each
            for node, network in enumerate(self.channel.networks)
            for each in self._named(node, wire.sockets(network.sockets))
        ]

    def _named(self, node: int, sockets: Iterable[wire.Socket]) -> Iterable[wire.Socket]:
        """With different connections on different nodes."""
        if len(self.channel.networks) == 1:
            return sockets
        return (each.on_node(node) for each in sockets)

    def note_closed(self) -> None:
        """Often enough that the operating system need not keep many."""
        for node, network in enumerate(self.channel.networks):
            for each in self._named(node, wire.closed_sockets(network.closings)):
                self.closed_sent[each.connection] += each.sent_bytes
                self.closed_written[each.connection] += each.written_bytes

    def _find_owners(self, sockets: Sequence[wire.Socket]) -> None:
        if not self.owner.keys() >= {each.inode for each in sockets}:
            self.owner = {
                inode: process.rank
                for process in self.ranks
                if process.pid is not None
                for inode in wire.inodes_of(process.pid)
            }

    def queued_bytes(self, rank: int) -> int:
        """Bytes in the buffers of a rank's sockets; in a sandbox also in those that no rank owns,
        such as closed ones."""
        try:
            sockets = self._sockets()
        except OSError:
            return 0
        self._find_owners(sockets)
        nobodys = rank if self.channel.networks else None
        return sum(
            each.queued_bytes for each in sockets if self.owner.get(each.inode, nobodys) == rank
        )

    def _collectives(self) -> int | None:
        if not self.taps:
            return None
        self.collectives += sum(map(gloo_collectives.count_new, self.taps))
        return self.collectives


def _network_bytes(channel: Channel) -> int | None:
    if not channel.networks:
        return None
    try:
        return sum(wire.sent_payload_bytes(each.interfaces) for each in channel.networks)
    except OSError:
        return None


def stray_bytes(before: Reading, after: Reading, ranks: int) -> int:
    """Bytes to or from ranks that do not take part: those from number ``ranks`` on."""
    inside = after.between(ranks)
    return sum(
        count - before.counts.get(at, (0, 0))[1]
        for at, (_, count) in after.counts.items()
        if at not in inside
    )
