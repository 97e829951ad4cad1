"""Messages between the kernel and one rank: a JSON header and a body of bytes, over a socket.

The header is JSON, so a grader can read an untrusted rank's messages without unpickling.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any

NODES = "nodes"  # in place of a rank: the process that makes the run's nodes
_SIZES = struct.Struct("<IQ")
MAX_HEADER_BYTES = 1 << 22  # an exception with its causes has about 100 KB at most
MAX_BODY_BYTES = 1 << 48  # more than the memory of any machine


class Forged(ValueError):
    """Bytes that our code in a rank never sends: student code wrote to the rank's connection."""


class TooLarge(ValueError):
    """An output larger than the limit."""


def pack(header: dict[str, Any], body: bytes = b"") -> bytes:
    return begin(header, body) + body


def begin(header: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return _SIZES.pack(len(text), len(body)) + text


def send(sock: socket.socket, header: dict[str, Any], body: bytes = b"") -> None:
    sock.sendall(begin(header, body))
    if body:  # not joined: it may be large
        sock.sendall(body)


def receive(sock: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Wait for one message; raises EOFError if the other side has closed the connection."""
    inbox = Inbox()
    while True:
        message = inbox.next()
        if message is not None:
            return message
        data = sock.recv(1 << 20)
        if not data:
            raise EOFError("the other side closed the connection")
        inbox.feed(data)


def read_file(fd: int) -> tuple[dict[str, Any], bytes]:
    """The single message in a memory file; all ranks read it."""
    inbox = Inbox()
    inbox.feed(os.pread(fd, os.fstat(fd).st_size, 0))
    message = inbox.next()
    assert message is not None
    return message


class Inbox:
    """Collects received bytes; yields messages once they are complete."""

    def __init__(self, max_body_bytes: int | None = None) -> None:
        self.buffer = bytearray()
        self.max_body_bytes = max_body_bytes

    def feed(self, data: bytes) -> None:
        self.buffer += data

    def next(self) -> tuple[dict[str, Any], bytes] | None:
        """The next complete message, or None; raises Forged or TooLarge (ValueError)."""
        if len(self.buffer) < _SIZES.size:
            return None
        header_bytes, body_bytes = _SIZES.unpack_from(self.buffer)
        if header_bytes > MAX_HEADER_BYTES or body_bytes > MAX_BODY_BYTES:
            raise Forged("this is not a message from a rank")
        body_start = _SIZES.size + header_bytes
        is_too_large = self.max_body_bytes is not None and body_bytes > self.max_body_bytes
        end = body_start if is_too_large else body_start + body_bytes
        if len(self.buffer) < end:
            return None
        try:
            header = json.loads(bytes(self.buffer[_SIZES.size : body_start]))
        except (ValueError, RecursionError):
            header = None
        if not isinstance(header, dict):
            raise Forged("this is not a message from a rank")
        if is_too_large:  # only after the header is valid: random bytes can claim any size
            raise TooLarge(
                f"the output is {body_bytes:,} bytes; the limit is {self.max_body_bytes:,}"
            )
        with memoryview(self.buffer) as view:  # a slice of the buffer itself would be one more copy
            body = bytes(view[body_start:end])
        del self.buffer[:end]
        return header, body
