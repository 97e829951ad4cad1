"""The bytes between each pair of ranks, from the operating system's counters or from the calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from shardlab.run import Call, MeasuredBlock, Traffic
from shardlab.run.result import Bytes
from shardlab.trace.calls import CallLog
from shardlab.trace.wire import Connection

FROM_COUNTERS = "counted by the operating system, on every TCP socket between ranks"
FROM_CALLS = "computed from the recorded calls (the operating system does not see this transport)"
HANDSHAKE_BYTES = 4096  # at most, when two ranks open a connection
Counts = Mapping[Connection, tuple[int, int]]  # connection -> (rank that owns it, bytes written)


def from_counters(log: CallLog, before: Counts, after: Counts, origin_s: float) -> Traffic:
    """Bytes written between the two readings, without the handshakes of new connections.

    For sockets closed in between, the log has the last count, reported by their rank.  For sockets
    open at the start or the end, the operating system's counters take precedence.
    """
    written = dict(before)
    for rank, counts in log.closing:
        for at, count in counts.items():
            _, known = written.get(at, (rank, 0))
            written[at] = rank, max(count, known)
    written.update(after)
    start: dict[Connection, int] = {}
    for _, counts in log.opened:  # reported by the rank, so capped at the size of a handshake
        start.update({at: min(count, HANDSHAKE_BYTES) for at, count in counts.items()})
    start.update({connection: count for connection, (_, count) in before.items()})
    owner = {connection: rank for connection, (rank, _) in written.items()}

    def peer_of(connection: Connection) -> int | None:
        return owner.get((connection[1], connection[0]))

    sent = np.zeros((log.world_size, log.world_size), dtype=np.int64)
    for connection, (rank, count) in written.items():
        peer = peer_of(connection)
        if peer is not None:
            sent[rank, peer] += count - start.get(connection, 0)
    blocks = []
    for block in log.blocks:
        row = [0] * log.world_size
        for connection, count in block.sent.items():
            peer = peer_of(connection)
            if peer is not None:
                row[peer] += count
        start_s, end_s = block.start_s - origin_s, block.end_s - origin_s
        blocks.append(MeasuredBlock(block.label, block.rank, start_s, end_s, tuple(row)))
    return Traffic(sent, FROM_COUNTERS, tuple(blocks))


def from_calls(log: CallLog, calls: Iterable[Call], origin_s: float) -> Traffic:
    """Bytes that rings would send for these calls; a block contains the calls that began in it."""
    calls = list(calls)
    blocks = []
    for block in log.blocks:
        start_s, end_s = block.start_s - origin_s, block.end_s - origin_s
        inside = [
            call for call in calls if call.rank == block.rank and start_s <= call.start_s <= end_s
        ]
        row = ring_bytes(inside, log.world_size)[block.rank]
        blocks.append(MeasuredBlock(block.label, block.rank, start_s, end_s, tuple(map(int, row))))
    return Traffic(ring_bytes(calls, log.world_size), FROM_CALLS, tuple(blocks))


def ring_bytes(calls: Iterable[Call], world_size: int) -> Bytes:
    """[N, N] bytes for these calls, with n ranks in a group and S = call.bytes.

    Rings send to the next rank of the group: all_reduce 2(n-1)/n S, reduce_scatter (n-1)/n S,
    all_gather (n-1) S, broadcast and reduce S (a chain through the group).
    all_to_all sends S/n to each, gather and scatter S to or from the first rank.
    """
    sent = np.zeros((world_size, world_size), dtype=np.float64)
    for call in calls:
        if call.op == "send" and call.peer is not None:
            sent[call.rank, call.peer] += call.bytes
        n = len(call.group)
        if call.is_p2p or n < 2 or call.rank not in call.group:
            continue
        position = call.group.index(call.rank)
        next_rank = call.group[(position + 1) % n]
        if call.op.startswith("all_reduce"):
            sent[call.rank, next_rank] += 2 * (n - 1) / n * call.bytes
        elif call.op.startswith("reduce_scatter"):
            sent[call.rank, next_rank] += (n - 1) / n * call.bytes
        elif call.op.startswith("all_gather"):
            sent[call.rank, next_rank] += (n - 1) * call.bytes
        elif call.op.startswith("all_to_all"):
            for member in call.group:
                sent[call.rank, member] += call.bytes / n if member != call.rank else 0
        elif call.op in ("broadcast", "reduce"):
            sent[call.rank, next_rank] += call.bytes if position < n - 1 else 0
        elif call.op == "gather" and position > 0:
            sent[call.rank, call.group[0]] += call.bytes
        elif call.op == "scatter" and position > 0:
            sent[call.group[0], call.rank] += call.bytes
    return np.rint(sent).astype(np.int64)
