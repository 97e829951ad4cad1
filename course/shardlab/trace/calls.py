"""From the events in the ranks' logs to calls: who is in what now, and what happened in all."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from shardlab.run import Call
from shardlab.trace.wire import Connection

# Ops whose tensors must be alike on every rank; all_to_all and monitored_barrier have no such rule
ALIKE = {
    *("all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_single"),
    *("broadcast", "all_gather", "all_gather_single", "gather", "scatter"),
}
NO_RANKS: tuple[int, ...] = ()
MOST_BYTES, MOST_SECONDS, MOST_CHARS, MOST_DIMENSIONS = 1 << 45, 1e9, 500, 64
Counts = dict[Connection, int]  # bytes by connection


@dataclass
class OpenCall:
    """A call as its rank logged it; `end_s` is None while it has not completed."""

    rank: int
    op: str
    bytes: int
    peer: int | None
    group: str
    start_s: float
    filename: str
    line: int
    dtype: str
    shape: tuple[int, ...]
    offset: int
    storage_numel: int
    tag: int
    seq: int = 0
    waited: bool = False
    end_s: float | None = None

    @property
    def is_p2p(self) -> bool:
        return self.op in ("send", "recv")

    @property
    def what(self) -> str:
        """The tensor in words: float32[8, 2]."""
        return f"{self.dtype}{list(self.shape)}"


@dataclass
class LoggedBlock:
    rank: int
    label: str
    start_s: float
    end_s: float
    sent: Counts


@dataclass
class Mismatch:
    """Ranks that met in one collective with different calls."""

    calls: tuple[OpenCall, ...]  # one per rank that has entered


@dataclass
class CallLog:
    """All calls of a run so far."""

    world_size: int
    calls: list[OpenCall] = field(default_factory=list)
    pending: list[dict[int, OpenCall]] = field(init=False)  # by rank, then by its call id
    started: list[Counter[Hashable]] = field(init=False)  # by rank: how many of each meeting_key
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    blocks: list[LoggedBlock] = field(default_factory=list)
    opened: list[tuple[int, Counts]] = field(default_factory=list)  # by rank: sockets just made
    closing: list[tuple[int, Counts]] = field(default_factory=list)  # all, before some close
    memory: dict[int, Any] = field(default_factory=dict)  # by rank: what its recorder told
    mismatched: list[list[OpenCall]] = field(default_factory=list)
    meetings: dict[Hashable, list[OpenCall]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pending = [{} for _ in range(self.world_size)]
        self.started = [Counter() for _ in range(self.world_size)]

    def add(self, rank: int, event: list[Any]) -> None:
        """Take in one event; one that no recorder writes is passed over."""
        try:
            self._add(rank, *event)
        except (TypeError, ValueError, KeyError, IndexError, OverflowError):
            return

    def _add(self, rank: int, kind: str, *values: Any) -> None:
        if kind == "call":
            self._begin(rank, *values)
        elif kind == "wait":
            self.pending[rank][values[0]].waited = True
        elif kind == "end":
            self._end(rank, *values)
        elif kind == "group":
            self._make_group(*values)
        elif kind == "block":
            label, start, end, sent = values
            block = LoggedBlock(rank, _text(label), _time(start), _time(end), _counts(sent))
            self.blocks.append(block)
        elif kind == "opened":
            self.opened.append((rank, _counts(values[0])))
        elif kind == "closing":
            self.closing.append((rank, _counts(values[0])))
        elif kind == "memory":
            self.memory[rank] = values[0]

    def _make_group(self, name: Any, members: Any) -> None:
        ranks = tuple(operator.index(member) for member in members)
        if len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(self.world_size)):
            raise ValueError("a group has ranks of this run, each once")
        self.groups.setdefault(_text(name), ranks)  # what it is it stays

    def _end(self, rank: int, call_id: int, end_s: float, source: int | None = None) -> None:
        call = self.pending[rank].pop(call_id)
        call.end_s = _time(end_s)
        if call.op == "recv" and call.peer is None and source is not None:
            group = self.groups.get(call.group, tuple(range(self.world_size)))
            call.peer = group[
                operator.index(source)
            ]  # from now on it is the receive that met that rank's send
            self._count(call)

    def _begin(self, rank: int, call_id: int, *values: Any) -> None:
        op, n_bytes, peer, group, start_s, filename, line, *tensor, tag, waits = values
        dtype, shape, offset, storage_numel = tensor
        call = OpenCall(
            rank=rank,
            op=_text(op),
            bytes=_size(n_bytes),
            peer=peer if peer is None else operator.index(peer),
            group=_text(group),
            start_s=_time(start_s),
            filename=_text(filename),
            line=_size(line),
            dtype=_text(dtype),
            shape=tuple(_size(length) for length in shape[:MOST_DIMENSIONS]),
            offset=_size(offset),
            storage_numel=_size(storage_numel),
            tag=operator.index(tag),
            waited=bool(waits),
        )
        if type(call_id) is not int or not (call.peer is None or 0 <= call.peer < self.world_size):
            return
        self.calls.append(call)
        self.pending[rank][call_id] = call
        self._count(call)

    def _count(self, call: OpenCall) -> None:
        key = meeting_key(call)
        self.started[call.rank][key] += 1
        call.seq = self.started[call.rank][key]
        if not call.is_p2p or call.peer is not None:
            self._meet(call)

    def members(self, call: OpenCall) -> tuple[int, ...]:
        """The ranks that meet in a call, itself included."""
        if call.is_p2p:
            return NO_RANKS if call.peer is None else (call.rank, call.peer)
        return self.groups.get(call.group, NO_RANKS)

    def _meet(self, call: OpenCall) -> None:
        key: Hashable = (call.group, call.seq)
        if call.is_p2p:
            ends = (call.rank, call.peer) if call.op == "send" else (call.peer, call.rank)
            key = (call.group, call.seq, call.tag, ends)
        here = self.meetings.setdefault(key, [])
        here.append(call)
        first = here[0]
        same_tensors = (first.bytes, first.dtype) == (call.bytes, call.dtype)
        alike = same_tensors if call.is_p2p else first.op == call.op
        if call.op in ALIKE:
            alike = alike and same_tensors
        if not alike and not any(known is here for known in self.mismatched):
            self.mismatched.append(here)
        if len(here) == len(self.members(call)):
            del self.meetings[key]

    @property
    def mismatch(self) -> Mismatch | None:
        """Of several the earliest in the ranks' own order, whichever was seen first."""
        if not self.mismatched:
            return None
        calls = min(self.mismatched, key=lambda calls: min((c.seq, c.rank) for c in calls))
        return Mismatch(tuple(calls))

    def finished_calls(
        self, origin_s: float, locate: Callable[[str, int], tuple[str, str]]
    ) -> list[Call]:
        """In order of their start; `locate` turns file and line into words and the line's text."""
        return [
            Call(
                rank=call.rank,
                op=call.op,
                bytes=call.bytes,
                peer=call.peer,
                group=self.groups.get(call.group, NO_RANKS),
                start_s=call.start_s - origin_s,
                end_s=None if call.end_s is None else call.end_s - origin_s,
                source=(where := locate(call.filename, call.line))[0],
                code=where[1],
                seq=call.seq,
                dtype=call.dtype,
                shape=call.shape,
                offset=call.offset,
                storage_numel=call.storage_numel,
                tag=call.tag,
            )
            for call in sorted(self.calls, key=lambda call: call.start_s)
        ]


def meeting_key(call: OpenCall) -> Hashable:
    """Calls of one rank that are counted together: their how-many-eth tells which one they meet."""
    if call.is_p2p:
        return call.op, call.group, call.peer, call.tag
    return "collective", call.group


# What a rank wrote may be anything.  These let through what a recorder writes, and raise ValueError
# or TypeError for the rest.


def _size(value: Any) -> int:
    size = operator.index(value)
    if not 0 <= size <= MOST_BYTES:
        raise ValueError("no size of anything")
    return size


def _time(value: Any) -> float:
    moment = float(value)
    if not 0 <= moment <= MOST_SECONDS:
        raise ValueError("no time of this machine")
    return moment


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value[:MOST_CHARS].encode(errors="replace").decode()


def _counts(value: Any) -> Counts:
    """From {"local port:remote port": bytes}."""
    found = {}
    for ports, count in dict(value).items():
        local, remote = _text(ports).split(":")
        found[_size(int(local)), _size(int(remote))] = _size(count)
    return found
