"""What recorded sends and receives tell about an algorithm: its steps, and who holds what when.

Pure bookkeeping on ``Run.calls``; the ring player draws it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import prod

from shardlab.run import Call

Holdings = dict[tuple[int, int], int]  # (rank, chunk): a bit for each rank whose data is in it


@dataclass(frozen=True)
class Chunk:
    """A part of a buffer, in elements. Ranks hold buffers of one layout."""

    storage_numel: int
    start: int
    stop: int


@dataclass(frozen=True)
class Transfer:
    """One send and the receive that took it. Contributions are bit masks by rank."""

    step: int
    sender: int
    receiver: int
    bytes: int
    start_s: float  # when the send began
    end_s: float | None  # when the receiver had it; None where it never arrived
    chunk: int | None  # which chunk left the sender
    lands_in: int | None  # which chunk of the receiver it went into
    carried: int = 0  # whose data it held
    held_after: int = 0  # whose data the receiver's chunk held afterwards


@dataclass(frozen=True)
class Story:
    """A run's messages in order. Without chunks, ``why_no_chunks`` says what hides them."""

    world_size: int
    chunks: tuple[Chunk, ...]
    messages: tuple[Transfer, ...]
    steps: int
    why_no_chunks: str

    def held_at(self, step: int) -> Holdings:
        """Who holds what after ``step`` steps. At first every rank holds its own data alone."""
        held = {
            (rank, chunk): 1 << rank
            for rank in range(self.world_size)
            for chunk in range(len(self.chunks))
        }
        for message in self.messages:
            if message.step < step and message.lands_in is not None and message.end_s is not None:
                held[message.receiver, message.lands_in] = message.held_after
        return held


def read_story(calls: Sequence[Call], world_size: int) -> Story:
    """Pair sends with receives, order them in steps, and follow the chunks."""
    pairs = _pair(calls)
    steps = _steps(pairs)
    chunks, why = _chunks([send for send, _ in pairs])
    index = {chunk: number for number, chunk in enumerate(chunks)}

    def place(call: Call | None) -> int | None:
        return None if call is None else index.get(_part(call))

    bare = []
    for (send, recv), step in zip(pairs, steps, strict=True):
        chunk = place(send)
        into = place(recv)
        bare.append(
            Transfer(
                step=step,
                sender=send.rank,
                receiver=_peer(send),
                bytes=send.bytes,
                start_s=send.start_s,
                end_s=recv.end_s if recv is not None else send.end_s,
                chunk=chunk,
                lands_in=chunk if into is None else into,
            )
        )
    # A receive straight into a chunk replaces it; one into another tensor is added to it later.
    replacing = {
        message for message, (_, recv) in zip(bare, pairs, strict=True) if place(recv) is not None
    }
    bare.sort(key=lambda message: (message.step, message.sender, message.start_s))
    return Story(
        world_size=world_size,
        chunks=chunks,
        messages=tuple(_follow(bare, replacing, world_size, len(chunks))),
        steps=max(steps, default=-1) + 1,
        why_no_chunks=why,
    )


def _pair(calls: Sequence[Call]) -> list[tuple[Call, Call | None]]:
    """Each send, in order of its start, with the receive of that number between the two ranks."""
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
    """The step of each send: one after the rank's last send, and after all it had received.

    In a ring that is simply "the k-th send of every rank". In a relay the second rank's first
    send is step 1, as it could only follow what arrived in step 0.
    """
    last_send: dict[int, int] = {}
    arrivals: dict[int, list[tuple[float, int]]] = {}
    steps = []
    for send, recv in pairs:  # in order of their start
        heard = [step for at, step in arrivals.get(send.rank, []) if at <= send.start_s]
        step = max(last_send.get(send.rank, -1), *heard, -1) + 1
        last_send[send.rank] = step
        if recv is not None and recv.end_s is not None:
            arrivals.setdefault(recv.rank, []).append((recv.end_s, step))
        steps.append(step)
    return steps


def _part(call: Call) -> Chunk:
    return Chunk(call.storage_numel, call.offset, call.offset + prod(call.shape))


def _peer(send: Call) -> int:
    assert send.peer is not None  # _pair keeps no other
    return send.peer


def _chunks(sends: Sequence[Call]) -> tuple[tuple[Chunk, ...], str]:
    """The chunks that sends took from their buffers, in the buffer's order; or why none show."""
    parts = sorted(
        {_part(send) for send in sends if prod(send.shape)},
        key=lambda part: (part.storage_numel, part.start, part.stop),
    )
    if not parts:
        return (), "Nothing was sent, so there are no chunks to follow."
    if any(part.stop - part.start == part.storage_numel for part in parts):
        return (), (
            "Whole tensors were sent (or copies of chunks), so the record does not tell "
            "which part of a buffer each was: messages are shown by their bytes."
        )
    for before, after in pairwise(parts):
        if before.storage_numel == after.storage_numel and after.start < before.stop:
            return (), (
                "The parts that were sent overlap, so they are no chunks of one buffer: "
                "messages are shown by their bytes."
            )
    return tuple(parts), ""


def _follow(
    messages: Sequence[Transfer], replacing: Set[Transfer], world_size: int, chunks: int
) -> Iterator[Transfer]:
    """Fill in contributions. The messages of one step all leave before any of them arrives."""
    held = {(rank, chunk): 1 << rank for rank in range(world_size) for chunk in range(chunks)}
    for _, together in groupby(messages, key=lambda message: message.step):
        step = list(together)
        carried = [0 if m.chunk is None else held[m.sender, m.chunk] for m in step]
        for message, mask in zip(step, carried, strict=True):
            if message.chunk is None or message.lands_in is None:  # nothing in it, or unknown
                yield message
                continue
            place = (message.receiver, message.lands_in)
            after = mask if message in replacing else held[place] | mask
            if message.end_s is not None:
                held[place] = after
            yield replace(message, carried=mask, held_after=after)
