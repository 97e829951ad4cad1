"""A rank's log: what it does, written where it can be read from outside at any moment.

The log is an anonymous memory file (memfd) that the rank maps and the kernel process reads.  It
needs no co-operation from a rank that is stuck in C, killed, or aborted by a shape mismatch, and
leaves nothing behind on any disk.  Events are JSON lines: a grader can read them without trust.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from typing import Any

CAPACITY_BYTES = 64 << 20  # sparse: only what is written takes memory
MOST_EVENTS = 1_000_000  # that are taken in: more than there is room for
MOST_LINE_BYTES = 8 << 20  # a recorder's longest, what it tells of memory, has some 100 KB
_CHUNK_BYTES = 1 << 20
_HEAD = struct.Struct("<QQ")  # bytes written, events dropped
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode
_DECODE = json.JSONDecoder().decode


def create() -> int:
    """A file descriptor of an empty log."""
    fd = os.memfd_create("shardlab-log", os.MFD_CLOEXEC)
    os.ftruncate(fd, CAPACITY_BYTES)
    return fd


class LogWriter:
    def __init__(self, fd: int) -> None:
        self.map = mmap.mmap(fd, CAPACITY_BYTES)
        self.used = 0
        self.dropped = 0
        self.lock = threading.Lock()  # gloo's own thread reports completions

    def write(self, *event: Any) -> None:
        line = _ENCODE(event).encode() + b"\n"
        with self.lock:
            start = _HEAD.size + self.used
            if start + len(line) > CAPACITY_BYTES:
                self.dropped += 1
            else:
                self.map[start : start + len(line)] = line
                self.used += len(line)
            _HEAD.pack_into(self.map, 0, self.used, self.dropped)  # last: now it is there


class LogReader:
    """What a rank has written may be anything: it costs time and memory in proportion, and no
    more of its lines are taken than ``most_events``."""

    def __init__(self, fd: int, most_events: int = MOST_EVENTS) -> None:
        self.fd = fd
        self.used = 0
        self.dropped = 0
        self.events_left, self.passed_over = most_events, 0
        self.partial = b""

    def new_events(self) -> Iterator[list[Any]]:
        """What was written since the last call; lines that aren't events are passed over."""
        head = os.pread(self.fd, _HEAD.size, 0)
        if len(head) < _HEAD.size:  # its rank cut it short
            return
        used, dropped = _HEAD.unpack(head)
        self.dropped = dropped + self.passed_over
        used = min(used, CAPACITY_BYTES - _HEAD.size)
        while self.used < used:
            data = os.pread(self.fd, min(used - self.used, _CHUNK_BYTES), _HEAD.size + self.used)
            if not data:
                return
            self.used += len(data)
            *lines, self.partial = (self.partial + data).split(b"\n")
            for line in lines:
                if self.events_left <= 0:
                    self.passed_over += 1
                    continue
                self.events_left -= 1
                if (event := _event(line)) is not None:
                    yield event
            if len(self.partial) > MOST_LINE_BYTES:
                self.partial = b""


def _event(line: bytes) -> list[Any] | None:
    try:
        event = _DECODE(line.decode())
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, list) and event else None
