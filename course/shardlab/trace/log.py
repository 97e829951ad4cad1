"""A rank's log of its calls, which another process can read at any time.

The log is an anonymous memory file (memfd) that the rank maps and the kernel process reads.  It
needs no cooperation from a rank that is stuck in C, killed, or aborted by a shape mismatch, and
leaves nothing on disk.  Events are JSON lines, which a grader can read safely.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from typing import Any

CAPACITY_BYTES = 64 << 20  # sparse: only written pages take memory
MAX_EVENTS = 1_000_000  # that a reader accepts; more than fit in the log
MAX_LINE_BYTES = 8 << 20  # a recorder's longest line, the memory summary, takes about 100 KB
_CHUNK_BYTES = 1 << 20
_HEAD = struct.Struct("<QQ")  # bytes written, events dropped
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode
_DECODE = json.JSONDecoder().decode


def create() -> int:
    """Create an empty log; returns its file descriptor."""
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
            _HEAD.pack_into(self.map, 0, self.used, self.dropped)  # last: publishes it


class LogReader:
    """Reads what a rank has written, at most ``max_events`` lines.

    Time and memory are proportional to the log's size.
    """

    def __init__(self, fd: int, max_events: int = MAX_EVENTS) -> None:
        self.fd = fd
        self.used = 0
        self.dropped = 0
        self.events_left, self.skipped = max_events, 0
        self.partial = b""

    def new_events(self) -> Iterator[list[Any]]:
        """Events written since the last call; lines that aren't events are skipped."""
        head = os.pread(self.fd, _HEAD.size, 0)
        if len(head) < _HEAD.size:  # its rank truncated it
            return
        used, dropped = _HEAD.unpack(head)
        self.dropped = dropped + self.skipped
        used = min(used, CAPACITY_BYTES - _HEAD.size)
        while self.used < used:
            data = os.pread(self.fd, min(used - self.used, _CHUNK_BYTES), _HEAD.size + self.used)
            if not data:
                return
            self.used += len(data)
            *lines, self.partial = (self.partial + data).split(b"\n")
            for line in lines:
                if self.events_left <= 0:
                    self.skipped += 1
                    continue
                self.events_left -= 1
                if (event := _event(line)) is not None:
                    yield event
            if len(self.partial) > MAX_LINE_BYTES:
                self.partial = b""


def _event(line: bytes) -> list[Any] | None:
    try:
        event = _DECODE(line.decode())
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, list) and event else None
