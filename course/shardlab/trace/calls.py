"""Turns the events in the ranks' logs into calls, both open and completed."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardlab.run import Call, Span
from shardlab.trace.wire import END_BITS, Connection

# Ops that need the same size and dtype on every rank; all_to_all and monitored_barrier do not
SAME_TENSORS = {
    *("all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_single"),
    *("broadcast", "all_gather", "all_gather_single", "gather", "scatter"),
}
NO_RANKS: tuple[int, ...] = ()
NEW_GROUP = "new_group"  # the op and the group of these calls, which every rank must make
# What a recorder writes about a call.  Other words in these places would be a student's own text,
# and messages about hidden cases name dtypes and options.
OPS = {
    *SAME_TENSORS, *("barrier", "monitored_barrier", "all_gather_coalesced", NEW_GROUP),
    *("all_to_all", "all_to_all_single", "send", "recv"),
}  # fmt: skip
DTYPES = {
    *("", "bool", "float16", "float32", "float64", "bfloat16", "complex32", "complex64"),
    *("complex128", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    *("float8_e8m0fnu", "float4_e2m1fn_x2", "qint8", "qint32", "quint8", "quint4x2", "quint2x4"),
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (*range(1, 9), 16, 32, 64)),
    *("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"),
}
SPAN_KINDS = ("compute", "communication")
_OPTION = r"op=[A-Z_]{1,20}|(?:src|dst)=\d{1,6}|(?:strides )?\[(?:\d{1,12}(?:, \d{1,12})*)?\]"
_OPTIONS = re.compile(rf"(?:{_OPTION})(?:, (?:{_OPTION}))*|")
MAX_BYTES, MAX_SECONDS, MAX_CHARS, MAX_DIMENSIONS = 1 << 45, 1e9, 500, 64
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
    options: str = ""  # what else must be the same on all ranks: "op=MAX", "src=0"
    seq: int = 0
    number: int = 0  # of all calls of its rank
    wait_start_s: float | None = None  # since when the main thread waits, or has waited, for it
    unwaited: bool = False  # its caller has to wait for it and has not done so
    changed: bool = False  # a send of a tensor that was changed before it was waited for
    handling: tuple[str, str, int] | None = None  # an exception, and the file and line it is from
    end_s: float | None = None

    @property
    def is_p2p(self) -> bool:
        return self.op in ("send", "recv")

    @property
    def waited(self) -> bool:
        return self.wait_start_s is not None

    @property
    def what(self) -> str:
        """The tensor as text: float32[8, 2]."""
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
    """Ranks that entered a collective with different calls."""

    calls: Sequence[OpenCall]  # one per rank that has entered; grows with the log


@dataclass
class CallLog:
    """All calls of a run so far."""

    world_size: int
    calls: list[OpenCall] = field(default_factory=list)
    pending: list[dict[int, OpenCall]] = field(init=False)  # by rank, then by its call id
    unwaited: list[dict[int, OpenCall]] = field(init=False)  # likewise
    started: list[Counter[Hashable]] = field(init=False)  # by rank: number of calls by match_key
    made: list[int] = field(init=False)  # by rank: number of calls
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    nodes: tuple[int, ...] = ()  # the node of each rank; () if all are on one
    blocks: list[LoggedBlock] = field(default_factory=list)
    opened: list[tuple[int, Counts]] = field(default_factory=list)  # by rank: new sockets
    closing: list[tuple[int, Counts]] = field(default_factory=list)  # all, before some are closed
    spans: list[Span] = field(default_factory=list)
    memory: dict[int, Any] = field(default_factory=dict)  # by rank: its recorder's summary
    # The first mismatch, and by key those that may still get calls of other ranks.
    mismatch: Mismatch | None = None
    mismatched: set[Hashable] = field(default_factory=set)
    unmatched: dict[Hashable, list[OpenCall]] = field(default_factory=dict)
    handling: dict[int, tuple[str, str, int]] = field(default_factory=dict)  # by rank: see OpenCall

    def __post_init__(self) -> None:
        self.pending = [{} for _ in range(self.world_size)]
        self.unwaited = [{} for _ in range(self.world_size)]
        self.started = [Counter() for _ in range(self.world_size)]
        self.made = [0] * self.world_size

    def add(self, rank: int, event: list[Any]) -> None:
        """Add one event; skip a malformed one."""
        try:
            self._add(rank, *event)
        except (TypeError, ValueError, KeyError, IndexError, OverflowError):
            return

    def _add(self, rank: int, kind: str, *values: Any) -> None:
        if kind == "call":
            self._begin(rank, *values)
        elif kind == "wait":
            call_id, start_s = values
            self._mark_waited(rank, call_id)
            self.pending[rank][call_id].wait_start_s = _time(start_s)
        elif kind == "waited":
            self._mark_waited(rank, values[0])
        elif kind == "end":
            self._end(rank, *values)
        elif kind == "changed":
            self.pending[rank][values[0]].changed = True
        elif kind == "handling":
            text, filename, line = values
            self.handling[rank] = _text(text), _text(filename), _size(line)
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
        elif kind == "span":
            self._add_span(rank, *values)
        elif kind == "memory":
            self.memory[rank] = values[0]

    def _add_span(self, rank: int, name: Any, kind: Any, start_s: Any, end_s: Any) -> None:
        kind = _one_of(SPAN_KINDS, kind)
        self.spans.append(Span(rank, _text(name), kind, _time(start_s), _time(end_s)))

    def _make_group(self, name: Any, members: Any) -> None:
        ranks = tuple(operator.index(member) for member in members)
        if len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(self.world_size)):
            raise ValueError("a group must contain ranks of this run, each once")
        self.groups.setdefault(_text(name), ranks)  # a name never changes its members

    def _mark_waited(self, rank: int, call_id: int) -> None:
        if call := self.unwaited[rank].pop(call_id, None):
            call.unwaited = False

    def _end(self, rank: int, call_id: int, end_s: float, source: int | None = None) -> None:
        call = self.pending[rank].pop(call_id)
        call.end_s = _time(end_s)
        if call.op == "recv" and call.peer is None and source is not None:
            group = self.groups.get(call.group, tuple(range(self.world_size)))
            call.peer = group[operator.index(source)]
            self._count(call)  # counted again, now as a receive from this rank

    def _begin(self, rank: int, call_id: int, *values: Any) -> None:
        op, n_bytes, peer, group, start_s, filename, line, *tensor, tag, options, waits = values
        dtype, shape, offset, storage_numel = tensor
        call = OpenCall(
            rank=rank,
            op=_one_of(OPS, op),
            bytes=_size(n_bytes),
            peer=peer if peer is None else operator.index(peer),
            group=_text(group),
            start_s=_time(start_s),
            filename=_text(filename),
            line=_size(line),
            dtype=_one_of(DTYPES, dtype),
            shape=tuple(_size(length) for length in shape[:MAX_DIMENSIONS]),
            offset=_size(offset),
            storage_numel=_size(storage_numel),
            tag=operator.index(tag),
            options=_options(options),
            wait_start_s=_time(start_s) if waits else None,
            handling=self.handling.pop(rank, None),
        )
        has_peer = call.peer is not None and 0 <= call.peer < self.world_size
        if type(call_id) is not int or not (has_peer or (call.peer is None and call.op != "send")):
            return
        self.calls.append(call)
        self.made[rank] += 1
        call.number = self.made[rank]
        self.pending[rank][call_id] = call
        if waits is None:
            call.unwaited = True
            self.unwaited[rank][call_id] = call
        self._count(call)

    def _count(self, call: OpenCall) -> None:
        key = match_key(call)
        self.started[call.rank][key] += 1
        call.seq = self.started[call.rank][key]
        if not call.is_p2p or call.peer is not None:
            self._match(call)

    def members(self, call: OpenCall) -> tuple[int, ...]:
        """The ranks that take part in a call, including its own."""
        if call.is_p2p:
            return NO_RANKS if call.peer is None else (call.rank, call.peer)
        return self.groups.get(call.group, NO_RANKS)

    def collectives_of(self, rank: int, group: str) -> list[OpenCall]:
        """A rank's collectives in a group, in its order: number 1 is the first."""
        return [c for c in self.calls if (c.rank, c.group) == (rank, group) and not c.is_p2p]

    def _match(self, call: OpenCall) -> None:
        key: Hashable = (call.group, call.seq)
        if call.is_p2p:
            ends = (call.rank, call.peer) if call.op == "send" else (call.peer, call.rank)
            key = (call.group, call.seq, call.tag, ends)
        matching = self.unmatched.setdefault(key, [])
        matching.append(call)
        first = matching[0]
        same_bytes = (first.bytes, first.dtype) == (call.bytes, call.dtype)
        same_call = first.op == call.op and _same_options(first.options, call.options)
        agree = same_bytes if call.is_p2p else same_call
        if call.op in SAME_TENSORS:
            agree = agree and same_bytes and _same_elements(first.shape, call.shape)
        if not agree or key in self.mismatched:
            self.mismatched.add(key)
            self._compare_with_first(matching)
        if len(matching) == len(self.members(call)):
            del self.unmatched[key]
            self.mismatched.discard(key)

    def _compare_with_first(self, calls: list[OpenCall]) -> None:
        """Keeps the first mismatch in the ranks' order of calls, regardless of how the logs were
        read.  A broken loop can make thousands, so each is looked at once."""
        if self.mismatch is None or _order(calls) < _order(self.mismatch.calls):
            self.mismatch = Mismatch(calls)

    def finished_calls(
        self, origin_s: float, locate: Callable[[str, int], tuple[str, str]]
    ) -> list[Call]:
        """All calls by start time; `locate` gives a line's description and its text."""
        return [
            Call(
                rank=call.rank,
                op=call.op,
                bytes=call.bytes,
                peer=call.peer,
                group=self.groups.get(call.group, NO_RANKS),
                start_s=call.start_s - origin_s,
                end_s=_since(origin_s, call.end_s),
                wait_start_s=_since(origin_s, call.wait_start_s),
                source=(where := locate(call.filename, call.line))[0],
                code=where[1],
                seq=call.seq,
                dtype=call.dtype,
                shape=call.shape,
                offset=call.offset,
                storage_numel=call.storage_numel,
                tag=call.tag,
                options=call.options,
                waited=not call.unwaited,
            )
            for call in sorted(self.calls, key=lambda call: call.start_s)
            if call.op != NEW_GROUP
        ]


def spans_since(origin_s: float, spans: Iterable[Span]) -> list[Span]:
    """The spans by start time, which is counted from the origin."""
    moved = (
        replace(span, start_s=span.start_s - origin_s, end_s=span.end_s - origin_s)
        for span in spans
    )
    return sorted(moved, key=lambda span: span.start_s)


def _since(origin_s: float, moment_s: float | None) -> float | None:
    return None if moment_s is None else moment_s - origin_s


def _same_options(one: str, other: str) -> bool:
    """The reduction counts only if it is known of both calls; it comes first."""
    if one.startswith("op=") != other.startswith("op="):
        one, other = (each.partition(", ")[2] if "op=" in each else each for each in (one, other))
    return one == other


def _same_elements(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether tensors of these shapes hold the same elements in the same order.

    A vector may be a flat view of the other: only its size counts.
    """
    lengths, others = ([length for length in shape if length != 1] for shape in (one, other))
    return lengths == others or min(len(lengths), len(others)) < 2


def _order(calls: Sequence[OpenCall]) -> tuple[int, int, int]:
    return min((call.seq, call.rank, call.number) for call in calls)


def match_key(call: OpenCall) -> Hashable:
    """Numbers a rank's calls with the same key; equal numbers on different ranks match."""
    if call.is_p2p:
        return call.op, call.group, call.peer, call.tag
    return "collective", call.group


# A rank may write anything to its log.  These functions accept what a recorder writes, and raise
# ValueError or TypeError for anything else.


def _size(value: Any) -> int:
    size = operator.index(value)
    if not 0 <= size <= MAX_BYTES:
        raise ValueError("not a size")
    return size


def _time(value: Any) -> float:
    moment = float(value)
    if not 0 <= moment <= MAX_SECONDS:
        raise ValueError("not a valid time")
    return moment


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value[:MAX_CHARS].encode(errors="replace").decode()


def _one_of(known: Collection[str], value: Any) -> str:
    if value not in known:
        raise ValueError("not a name that a recorder writes")
    return str(value)


def _options(value: Any) -> str:
    text = _text(value)
    if not _OPTIONS.fullmatch(text):
        raise ValueError("not options that a recorder writes")
    return text


def _counts(value: Any) -> Counts:
    """Converts from {"local port:remote port": bytes}."""
    found = {}
    for ports, count in dict(value).items():
        local, remote = _text(ports).split(":")
        found[_end(local), _end(remote)] = _size(count)
    return found


def _end(text: str) -> int:
    """One end of a Connection."""
    end = int(text)
    if not 0 <= end < 1 << END_BITS:
        raise ValueError("not an end of a connection")
    return end
