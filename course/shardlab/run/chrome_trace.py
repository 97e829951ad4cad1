"""What all ranks did, in the Trace Event Format, which Perfetto and Chrome read.

Format: "Trace Event Format", Google, 2016 (linked from https://perfetto.dev/docs). A process is a
rank; states, measured blocks, operators, calls and messages are on threads of their own, more than
one where they overlap. A call that never ended has no end there either. Flow events lead from each
send to its receive.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shardlab.run.call import Call, MeasuredBlock, Span
from shardlab.run.lanes import free_lanes
from shardlab.run.matching import match_calls
from shardlab.run.states import State

Event = dict[str, Any]
Did = Call | MeasuredBlock | Span | State
KINDS = ("states", "measured blocks", "operators", "calls", "communication, by torch.profiler")
NESTED = 3  # the first kinds: those that overlap only if one contains the other
LANES = 100  # at most, of a kind


def of(did: Sequence[Did], world_size: int, nodes: Sequence[int] = ()) -> dict[str, Any]:
    """The trace, as json.dump writes it. Its times begin with the first of what ranks did."""
    first_s = min((each.start_s for each in did), default=0.0)
    by_thread: dict[tuple[int, int], list[Did]] = defaultdict(list)
    for each in did:
        by_thread[each.rank, _kind(each)].append(each)
    thread_of: dict[Did, int] = {}
    names: list[Event] = []
    for rank in range(world_size):
        names += _names(rank, nodes[rank] if len(set(nodes)) > 1 else None)
        for kind in range(len(KINDS)):
            own = by_thread[rank, kind]
            lane_of, lanes = (dict.fromkeys(own, 0), 1) if kind < NESTED else free_lanes(own)
            thread_of |= {each: _thread(rank, kind, lane) for each, lane in lane_of.items()}
            names += _thread_names(rank, kind, min(lanes, LANES) if own else 0)

    def at(event: str, each: Did, moment_s: float, **more: Any) -> Event:
        place = {"pid": each.rank, "tid": thread_of[each]}
        return {"ph": event, **place, "ts": round(1e6 * (moment_s - first_s), 3), **more}

    def slices() -> Iterator[Event]:
        for each in did:
            what = {"name": _name(each), "cat": KINDS[_kind(each)], "args": _arguments(each)}
            if each.end_s is None:
                yield at("B", each, each.start_s, **what)
            else:
                length_us = 1e6 * (each.end_s - each.start_s)
                yield at("X", each, each.start_s, dur=round(length_us, 3), **what)

    def flows() -> Iterator[Event]:
        for number, matched in enumerate(match_calls(c for c in did if isinstance(c, Call))):
            send, receive = matched.sender, matched.receiver
            if send is not None and receive is not None:
                what = {"name": "message", "cat": "message", "id": number}
                yield at("s", send, send.start_s, **what)
                # Within the receive, which ends after both have started
                yield at("f", receive, max(send.start_s, receive.start_s), bp="e", **what)

    return {"traceEvents": [*names, *slices(), *flows()], "displayTimeUnit": "ms"}


def save(trace: dict[str, Any], path: Path) -> Path:
    """Write all of it or nothing: a full disk leaves what was there."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(json.dumps(trace))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _names(rank: int, node: int | None) -> list[Event]:
    of_node = "" if node is None else f" (node {node})"
    place = {"ph": "M", "pid": rank, "tid": 0}
    return [
        place | {"name": "process_name", "args": {"name": f"rank {rank}{of_node}"}},
        place | {"name": "process_sort_index", "args": {"sort_index": rank}},
    ]


def _thread_names(rank: int, kind: int, lanes: int) -> Iterator[Event]:
    for lane in range(lanes):
        place = {"ph": "M", "pid": rank, "tid": (tid := _thread(rank, kind, lane))}
        name = KINDS[kind] + (f" ({lane + 1})" if lane else "")
        yield place | {"name": "thread_name", "args": {"name": name}}
        yield place | {"name": "thread_sort_index", "args": {"sort_index": tid}}


def _thread(rank: int, kind: int, lane: int) -> int:
    """Readers take a thread's number as unique among all processes, and 0 as the idle thread."""
    return 1 + lane % LANES + LANES * (kind + len(KINDS) * rank)


def _kind(each: Did) -> int:
    """An index of KINDS."""
    if isinstance(each, Span):
        return 2 if each.kind == "compute" else 4
    return {State: 0, MeasuredBlock: 1, Call: 3}[type(each)]


def _name(each: Did) -> str:
    if isinstance(each, Call):
        return each.op
    return each.label if isinstance(each, MeasuredBlock) else each.name


def _arguments(each: Did) -> dict[str, Any]:
    if isinstance(each, State):
        return {} if each.call is None else {"call": each.call.op, "line": each.call.source}
    if isinstance(each, Span):
        return {}
    if isinstance(each, MeasuredBlock):
        return {"sent_bytes": each.sent_bytes}
    partner = {"peer": each.peer} if each.is_p2p else {"group": each.group}
    return {
        "bytes": each.bytes,
        **partner,
        "tensor": f"{each.dtype}{list(each.shape)}",
        "number": each.seq,
        "line": each.source,
        "code": each.code,
    }
