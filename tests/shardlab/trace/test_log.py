"""The log that a rank writes and the kernel process reads."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import pytest

from shardlab.trace import log


@pytest.fixture
def fd() -> Iterator[int]:
    fd = log.create()
    yield fd
    os.close(fd)


def test_events_arrive_once_and_in_order(fd: int) -> None:
    writer, reader = log.LogWriter(fd), log.LogReader(fd)
    assert list(reader.new_events()) == []
    writer.write("a", 1, None)
    writer.write("b", [1.5, {"x": "é"}])
    assert list(reader.new_events()) == [["a", 1, None], ["b", [1.5, {"x": "é"}]]]
    assert list(reader.new_events()) == []
    writer.write("c")
    assert list(reader.new_events()) == [["c"]]


def test_two_readers_do_not_disturb_each_other(fd: int) -> None:
    writer = log.LogWriter(fd)
    writer.write("a")
    assert list(log.LogReader(fd).new_events()) == list(log.LogReader(fd).new_events()) == [["a"]]


def test_a_full_log_drops_and_counts(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "CAPACITY_BYTES", 64)
    writer, reader = log.LogWriter(fd), log.LogReader(fd)
    for number in range(10):
        writer.write("event", number)
    events = list(reader.new_events())
    assert events == [["event", number] for number in range(len(events))]
    assert reader.dropped == 10 - len(events) > 0


DEEP = pytest.param(b"[" * 100_000 + b"\n")


@pytest.mark.parametrize(
    "line",
    [b"{not json\n", b'{"a": 1}\n', b"[]\n", b"3\n", b"\xff\xfe\n", DEEP],
    ids=["not json", "not a list", "empty", "number", "not text", "nested too deeply"],
)
def test_lines_that_are_not_events_are_skipped(fd: int, line: bytes) -> None:
    writer, reader = log.LogWriter(fd), log.LogReader(fd)
    writer.map[16 : 16 + len(line)] = line
    writer.used = len(line)
    writer.write("after")
    assert list(reader.new_events()) == [["after"]]


def test_a_corrupted_head_is_harmless(fd: int) -> None:
    os.pwrite(fd, struct.pack("<QQ", 1 << 62, 3), 0)
    assert list(log.LogReader(fd).new_events()) == []


def test_nothing_is_read_twice_after_the_head_is_reset(fd: int) -> None:
    writer, reader = log.LogWriter(fd), log.LogReader(fd)
    writer.write("a")
    list(reader.new_events())
    os.pwrite(fd, struct.pack("<QQ", 0, 0), 0)
    assert list(reader.new_events()) == []


def test_a_truncated_log_is_harmless(fd: int) -> None:
    writer, reader = log.LogWriter(fd), log.LogReader(fd)
    writer.write("a")
    os.ftruncate(fd, 20)
    list(reader.new_events())
    os.ftruncate(fd, 3)
    assert list(reader.new_events()) == []


def test_no_more_than_max_events_are_read(fd: int) -> None:
    writer, reader = log.LogWriter(fd), log.LogReader(fd, max_events=5)
    for number in range(9):
        writer.write("event", number)
    assert list(reader.new_events()) == [["event", number] for number in range(5)]
    list(reader.new_events())
    assert reader.dropped == 4


def test_long_lines_are_read_in_pieces(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_CHUNK_BYTES", 7)
    writer, reader = log.LogWriter(fd), log.LogReader(fd)
    writer.write("a", "x" * 100)
    writer.write("b")
    assert list(reader.new_events()) == [["a", "x" * 100], ["b"]]
