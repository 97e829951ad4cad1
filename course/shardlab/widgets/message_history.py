"""The steps of an algorithm, and where its data is after each, from recorded sends and receives.

Computed only from ``Run.calls``; the ring player draws it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import prod

from shardlab.run import Call

Holdings = dict[tuple[int, int], int]  # (rank, chunk): bit r is set if rank r's data is in it


@dataclass(frozen=True)
class Chunk:
    """A slice of a buffer, in elements. The buffers of all ranks have the same layout."""

    storage_numel: int
    start: int
    stop: int


@dataclass(frozen=True)
class Transfer:
    """One send and its matching receive. Contributions are bit masks by rank."""

    step: int
    sender: int
    receiver: int
    bytes: int
    start_s: float  # when the send started
    end_s: float | None  # when the receiver had it; None if it never arrived
    chunk: int | None  # the chunk that was sent
    target_chunk: int | None  # the receiver's chunk that it arrived in
    carried: int = 0  # ranks whose data is in it
    held_after: int = 0  # ranks whose data is in the receiver's chunk afterwards


@dataclass(frozen=True)
class MessageHistory:
    """A run's messages in order. If ``chunks`` is empty, ``why_no_chunks`` gives the reason."""

    world_size: int
    chunks: tuple[Chunk, ...]
    messages: tuple[Transfer, ...]
    steps: int
    why_no_chunks: str

    def held_at(self, step: int) -> Holdings:
        """The holdings after ``step`` steps. At first every rank holds only its own data."""
        held = {
            (rank, chunk): 1 << rank
            for rank in range(self.world_size)
            for chunk in range(len(self.chunks))
        }
        for message in self.messages:
            if (
                message.step < step
                and message.target_chunk is not None
                and message.end_s is not None
            ):
                held[message.receiver, message.target_chunk] = message.held_after
        return held


def read_messages(calls: Sequence[Call], world_size: int) -> MessageHistory:
    """Pair sends with receives, group them into steps and track the chunks."""
    pairs = _pair(calls)
    steps = _steps(pairs)
    chunks, why = _chunks([send for send, _ in pairs])
    index = {chunk: number for number, chunk in enumerate(chunks)}

    def chunk_of(call: Call | None) -> int | None:
        return None if call is None else index.get(_slice_of(call))

    transfers = []
    for (send, recv), step in zip(pairs, steps, strict=True):
        chunk = chunk_of(send)
        into = chunk_of(recv)
        transfers.append(
            Transfer(
                step=step,
                sender=send.rank,
                receiver=_peer(send),
                bytes=send.bytes,
                start_s=send.start_s,
                end_s=recv.end_s if recv is not None else send.end_s,
                chunk=chunk,
                target_chunk=chunk if into is None else into,
            )
        )
    # A receive directly into a chunk replaces it; one into another tensor is added to it later.
    replacing = {
        message
        for message, (_, recv) in zip(transfers, pairs, strict=True)
        if chunk_of(recv) is not None
    }
    transfers.sort(key=lambda message: (message.step, message.sender, message.start_s))
    return MessageHistory(
        world_size=world_size,
        chunks=chunks,
        messages=tuple(_track(transfers, replacing, world_size, len(chunks))),
        steps=max(steps, default=-1) + 1,
        why_no_chunks=why,
    )


def _pair(calls: Sequence[Call]) -> list[tuple[Call, Call | None]]:
    """Pairs each send with the receive of the same sequence number, ordered by start time."""
    receives: dict[tuple[object, ...], Call] = {
        (call.peer, call.rank, call.group, call.tag, call.seq): call
        for call in calls
        if call.op == "recv"
    }
    sends = [call for call in calls if call.op == "send" and call.peer is not None]
    sends.sort(key=lambda call: (call.start_s, call.rank))
    return [
        (send, receives.get((send.rank, send.peer, send.group, send.tag, send.seq)))
        for send in sends
    ]


def _steps(pairs: list[tuple[Call, Call | None]]) -> list[int]:
    """The step of each send: one after its rank's last send and everything received before it.

    In a ring that is simply "the k-th send of every rank". In a relay the second rank's first
    send is step 1, because it depends on what arrived in step 0.
    """
    last_send: dict[int, int] = {}
    arrivals: dict[int, list[tuple[float, int]]] = {}
    steps = []
    for send, recv in pairs:  # by start time
        received = [step for at, step in arrivals.get(send.rank, []) if at <= send.start_s]
        step = max(last_send.get(send.rank, -1), *received, -1) + 1
        last_send[send.rank] = step
        if recv is not None and recv.end_s is not None:
            arrivals.setdefault(recv.rank, []).append((recv.end_s, step))
        steps.append(step)
    return steps


def _slice_of(call: Call) -> Chunk:
    return Chunk(call.storage_numel, call.offset, call.offset + prod(call.shape))


def _peer(send: Call) -> int:
    assert send.peer is not None  # _pair drops all others
    return send.peer


def _chunks(sends: Sequence[Call]) -> tuple[tuple[Chunk, ...], str]:
    """The chunks that were sent, in buffer order; or none, and the reason."""
    parts = sorted(
        {_slice_of(send) for send in sends if prod(send.shape)},
        key=lambda part: (part.storage_numel, part.start, part.stop),
    )
    if not parts:
        return (), "Nothing was sent, so there are no chunks to follow."
    if any(part.stop - part.start == part.storage_numel for part in parts):
        return (), (
            "Whole tensors (or copies of chunks) were sent, so the record does not show which "
            "part of a buffer each one was: only the bytes of messages are shown."
        )
    for before, after in pairwise(parts):
        if before.storage_numel == after.storage_numel and after.start < before.stop:
            return (), (
                "The parts that were sent overlap, so they are not chunks of one buffer: "
                "only the bytes of messages are shown."
            )
    return tuple(parts), ""


def _track(
    messages: Sequence[Transfer], replacing: Set[Transfer], world_size: int, chunks: int
) -> Iterator[Transfer]:
    """Fill in contributions. All messages of a step leave before any of them arrives."""
    held = {(rank, chunk): 1 << rank for rank in range(world_size) for chunk in range(chunks)}
    for _, group in groupby(messages, key=lambda message: message.step):
        step = list(group)
        carried = [0 if m.chunk is None else held[m.sender, m.chunk] for m in step]
        for message, mask in zip(step, carried, strict=True):
            if message.chunk is None or message.target_chunk is None:  # empty or unknown
                yield message
                continue
            key = (message.receiver, message.target_chunk)
            after = mask if message in replacing else held[key] | mask
            if message.end_s is not None:
                held[key] = after
            yield replace(message, carried=mask, held_after=after)
