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
from typing import Any

CAPACITY_BYTES = 64 << 20  # sparse: only what is written takes memory
_HEAD = struct.Struct("<QQ")  # bytes written, events dropped
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


def create() -> int:
    """A file descriptor of an empty log."""
    fd = os.memfd_create("shardlab-log", os.MFD_CLOEXEC)
    os.ftruncate(fd, CAPACITY_BYTES)
    return fd


class Writer:
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


class Reader:
    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.used = 0
        self.dropped = 0

    def new_events(self) -> list[list[Any]]:
        """What was written since the last call; lines that aren't events are passed over."""
        used, self.dropped = _HEAD.unpack(os.pread(self.fd, _HEAD.size, 0))
        used = min(used, CAPACITY_BYTES - _HEAD.size)
        if used <= self.used:
            return []
        data = os.pread(self.fd, used - self.used, _HEAD.size + self.used)
        self.used = used
        events = []
        for line in data.splitlines():
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, list) and event:
                events.append(event)
        return events
