"""Whatever a rank writes to its connections, reading it ends quickly with a defined result."""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from shardlab.errors import LaunchError, RankError
from shardlab.ranks import codec, messages
from shardlab.ranks.deadlock import stuck
from shardlab.ranks.execution import Execution
from shardlab.ranks.failure_detector import FailureDetector
from shardlab.ranks.messages import Forged, Inbox, TooLarge
from shardlab.ranks.meter import Reading
from shardlab.ranks.process import RankProcess
from shardlab.ranks.stream import screen
from shardlab.ranks.supervise import Supervisor
from shardlab.ranks.trust import Trust
from shardlab.run.live_memory import RankMemory
from shardlab.trace import log, measured_traffic
from shardlab.trace.calls import CallLog

ODD: list[Any] = [
    *(None, True, -1, 0, 10**400, 1.5, float("nan"), float("inf"), -(2**63), 2**64),
    *("", "x", "\ud800", "x" * 2000, "1:2", "send", "recv", "all_reduce"),
    *([], {}, [[]], {"a": 1}, {"1:2": 2**70}, [0, 1], [0, 0], [5], [-1], [None], [[0, 1]] * 3),
]
CALL = ["call", 1, "send", 8, 1, "0", 1.0, "a.py", 3, "float32", [2], 0, 2, 0, "", True]
EVENTS: list[list[Any]] = [
    ["group", "0", [0, 1]],
    CALL,
    [*CALL[:2], "recv", 8, None, *CALL[5:]],
    [*CALL[:2], "all_reduce", 8, None, *CALL[5:]],
    ["wait", 1, 1.5],
    ["end", 1, 2.0, 1],
    ["block", "label", 1.0, 2.0, {"1:2": 3}],
    ["opened", {"1:2": 3}],
    ["span", "aten::mm", "compute", 1.0, 2.0],
    ["closing", {"1:2": 3}],
    ["memory", {"live": [[1]] * 6, "times": [1.0], "peak": [1.0, [1] * 6], "peaks": [1] * 6}],
]
HEADERS: list[dict[str, Any]] = [
    {"is": "finished"},
    {"is": "needs", "op": "x"},
    {"is": "failed", "stage": "run", "chain": [{"kind": "E", "message": "m", "frames": []}]},
]


def mutated(value: Any, rng: random.Random) -> Any:
    """``value`` with some of its parts replaced or left out, at random."""
    if rng.random() < 0.15:
        return rng.choice(ODD)
    if isinstance(value, list):
        items = [mutated(item, rng) for item in value]
        if items and rng.random() < 0.1:
            items.pop(rng.randrange(len(items)))
        return items
    if isinstance(value, dict):
        return {key: mutated(item, rng) for key, item in value.items() if rng.random() > 0.05}
    return value


def garbled(data: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, sometimes truncated."""
    changed = bytearray(data)
    for _ in range(rng.randrange(4)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed[: rng.randrange(len(changed))] if rng.random() < 0.2 else changed)


@pytest.fixture
def rng() -> random.Random:
    return random.Random(4)


def test_a_log_of_any_events(rng: random.Random) -> None:
    """No event stops the reader, and the resulting log can be analyzed and counted."""
    for _ in range(300):
        calls = CallLog(2)
        for event in rng.choices(EVENTS, k=20):
            found = mutated(event, rng)
            if isinstance(found, list) and found:
                calls.add(rng.randrange(2), found)
        ranks = [RankProcess(rank, None, None, -1, state="running") for rank in range(2)]  # type: ignore[arg-type]
        detector = FailureDetector(ranks, calls, Trust.UNTRUSTED)
        stuck(detector.views(), calls.groups)
        assert calls.mismatch is None or calls.mismatch.calls
        finished = calls.finished_calls(0.0, lambda filename, line: (filename, ""))
        json.dumps([vars(call) for call in finished]).encode()
        counted = measured_traffic.from_counters(calls, {}, {(1, 2): (0, 5), (2, 1): (1, 6)}, 0.0)
        assert counted.sent_bytes.sum() <= 11
        measured_traffic.from_calls(calls, finished, 0.0)
        for summary in calls.memory.values():
            with contextlib.suppress(ValueError, TypeError, KeyError, IndexError, OverflowError):
                RankMemory.from_summary(summary, 0.0)


def test_a_rank_cannot_hide_bytes_with_false_reports_about_its_sockets() -> None:
    log_of_run = CallLog(2)
    for kind in ("opened", "closing"):
        log_of_run.add(0, [kind, {"1:2": 1_000_000}])
    before, after = {(1, 2): (0, 100), (2, 1): (1, 100)}, {(1, 2): (0, 1_000_100), (2, 1): (1, 100)}
    found = measured_traffic.from_counters(log_of_run, before, after, 0.0)
    assert found.sent_bytes[0, 1] == 1_000_000


def test_messages_of_any_form(rng: random.Random) -> None:
    for _ in range(1000):
        inbox = Inbox(max_body_bytes=1000)
        process = RankProcess(0, None, None, -1, state="running")  # type: ignore[arg-type]
        header = mutated(rng.choice(HEADERS), rng)
        packed = messages.pack(header, b"body")
        inbox.feed(garbled(packed, rng) if rng.random() < 0.5 else packed)
        with contextlib.suppress(Forged, TooLarge):
            message = inbox.next()
            if message is not None:
                process.handle(*message)
                json.dumps(process.failure, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "header",
    [{"is": "finished", "passed": True}, {"is": "ready"}, {"is": "verdict"}, {}, {"is": "needs"}],
    ids=str,
)
def test_a_message_with_extra_or_missing_fields_counts_as_forged(header: dict[str, Any]) -> None:
    process = RankProcess(0, None, None, -1, state="running")  # type: ignore[arg-type]
    with pytest.raises(Forged):
        process.handle(header, b"")


class Exit:
    """The channel of a server that reports the exit of rank 0."""

    def receive(self) -> dict[str, Any]:
        return {"rank": 0, "exit": -6, "max_rss_bytes": 0}


def test_the_last_message_of_a_rank_is_read_before_its_exit_counts() -> None:
    ours, theirs = socket.socketpair()
    ranks = Supervisor({"world_size": 1, "engine": "torch", "device": "cpu"}, screen(True), None)  # type: ignore[arg-type]
    process = RankProcess(0, ours, None, -1, state="running")  # type: ignore[arg-type]
    ranks.ranks, ranks.channel = [process], Exit()  # type: ignore[assignment]
    ranks.selector.register(ours, selectors.EVENT_READ, ("control", process))
    with ours, theirs, ranks.selector:
        theirs.sendall(messages.pack({"is": "noise"}))
        ranks._read_server()
        assert process.forged
        ranks._read_rank(process)  # called next anyway, as the socket was readable


@pytest.fixture
def execution() -> Iterator[Execution]:
    """Two ranks called a collective with different tensors and one was aborted; the run is over."""
    fds = [log.create() for _ in range(2)]
    ranks = [RankProcess(rank, None, log.LogReader(fd), fd) for rank, fd in enumerate(fds)]  # type: ignore[arg-type]
    execution = Execution(ranks, 1.0, Trust.UNTRUSTED, before=Reading({}, None, 0))
    for rank, n_bytes in enumerate((8, 16)):
        call = [*CALL[:2], "all_reduce", n_bytes, None, *CALL[5:10], [n_bytes // 4], *CALL[11:]]
        execution.log.add(rank, call)
    assert execution.log.mismatch is not None
    ranks[0].state, ranks[0].exit_code = "dead", -signal.SIGABRT
    yield execution
    for fd in fds:
        os.close(fd)


def test_a_forged_message_or_a_full_log_overrides_other_errors(execution: Execution) -> None:
    def kind() -> str:
        execution.read_logs()
        with pytest.raises(LaunchError) as caught:
            execution.detector.raise_at_timeout(0.0)
        return getattr(caught.value, "kind", type(caught.value).__name__)

    other = execution.ranks[1]
    assert kind() == "DeadlockError"
    os.pwrite(other.log.fd, struct.pack("<QQ", 0, 1), 0)  # an event was dropped
    assert kind() == "TooLarge"
    other.fail_in_output(Forged("noise"))
    assert kind() == "Forged"


def test_a_killed_rank_is_the_cause_of_other_failures(execution: Execution) -> None:
    execution.log.mismatch = None
    first, other = execution.ranks
    first.exit_code = 1
    other.state, other.exit_code = "dead", -signal.SIGKILL
    with pytest.raises(RankError) as caught:
        execution.detector.raise_failures(0.0, at_once=True)
    assert caught.value.kind == "SIGKILL"


def test_outputs_of_any_form(rng: random.Random) -> None:
    value = {"a": [torch.ones(3), np.ones(2), 1, 2.5, "x", b"y", None, (1, True)], "b": {}}
    packed = codec.encode_plain(value)
    for _ in range(1000):
        with contextlib.suppress(ValueError):
            codec.decode_plain(garbled(packed, rng))
    for _ in range(200):
        with contextlib.suppress(ValueError):
            codec.decode_plain(rng.randbytes(rng.randrange(200)))


def tree_of(tree: Any, tensors: bytes = b"") -> bytes:
    text = json.dumps(tree).encode()
    return struct.pack("<Q", len(text)) + text + tensors


def safetensors_header(header: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


GIANT = {"0": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}}
NOTHING = safetensors_header({})


@pytest.mark.parametrize(
    "data",
    [
        tree_of({"tensor": "0"}, safetensors_header(GIANT, b"\0" * 8)),
        tree_of({"tensor": "0"}, struct.pack("<Q", 1 << 60)),
        tree_of({"tensor": ["0"]}, NOTHING),
        tree_of({"int": "9" * 5000}, NOTHING),
        tree_of({"int": "1", "float": "1"}, NOTHING),
        tree_of([1, 2], NOTHING),
        tree_of({"list": 3}, NOTHING),
        tree_of({"dict": []}, NOTHING),
        struct.pack("<Q", 20_000) + b'{"list":[' * 2000 + NOTHING,
        struct.pack("<Q", 1 << 62),
        struct.pack("<Q", codec.MAX_TREE_BYTES + 1) + b" " * (codec.MAX_TREE_BYTES + 1),
    ],
    ids=lambda data: "",
)
def test_outputs_that_claim_missing_data(data: bytes) -> None:
    with pytest.raises(ValueError, match="not plain data"):
        codec.decode_plain(data)


def test_an_output_of_too_many_numbers_is_rejected_when_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec, "MAX_TREE_BYTES", 1000)
    with pytest.raises(ValueError, match="as a tensor"):
        codec.encode_plain(list(range(600)))


@pytest.fixture
def written() -> Iterator[Callable[[bytes], log.LogReader]]:
    fds = []

    def write(data: bytes) -> log.LogReader:
        fds.append(log.create())
        os.pwrite(fds[-1], struct.pack("<QQ", len(data), 0) + data, 0)
        return log.LogReader(fds[-1], max_events=1000)

    yield write
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize(
    "data",
    [b"\n" * 1_500_000, b"[1]\n" * 200_000, b"[" * 12_000_000, b"\xff" * 1_000_000 + b"\n"],
    ids=["empty lines", "short lines", "one line", "not text"],
)
def test_a_log_of_any_bytes(written: Callable[[bytes], log.LogReader], data: bytes) -> None:
    reader = written(data)
    assert len(list(reader.new_events())) <= 1000
    assert len(reader.partial) <= log.MAX_LINE_BYTES


@pytest.fixture
def supervisor() -> Iterator[tuple[Supervisor, RankProcess, socket.socket]]:
    """Of a rank whose side of the connection is a socket."""
    ours, theirs = socket.socketpair()
    supervisor = Supervisor(
        {"world_size": 1, "engine": "torch", "device": "cpu"}, screen(True), None
    )  # type: ignore[arg-type]
    process = RankProcess(0, ours, None, -1, state="running")  # type: ignore[arg-type]
    supervisor.ranks = [process]
    supervisor.selector.register(ours, selectors.EVENT_READ, ("control", process))
    with ours, theirs, supervisor.selector:
        yield supervisor, process, theirs


def test_a_rank_that_reads_nothing_does_not_block_the_checker(
    supervisor: tuple[Supervisor, RankProcess, socket.socket],
) -> None:
    ranks, process, theirs = supervisor
    content = os.urandom(10_000_000)
    process.send(b"header", content)
    assert process.outbox
    received = b""
    while len(received) < len(content) + 6:
        ranks._listen(0.01)
        received += theirs.recv(1 << 20)
    assert received == b"header" + content
    assert not process.outbox


def test_one_request_to_be_measured_is_served_in_a_turn(
    supervisor: tuple[Supervisor, RankProcess, socket.socket],
) -> None:
    ranks, _, theirs = supervisor
    theirs.sendall(messages.pack({"is": "measure", "label": "x"}) * 990)
    measured = []
    ranks._measure = lambda process: (measured.append(process), process.resume())  # type: ignore[assignment, func-returns-value, method-assign]
    for turn in range(1, 5):
        ranks._listen(0.01)
        assert len(measured) == turn
