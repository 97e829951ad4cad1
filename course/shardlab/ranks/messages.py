"""Messages between the kernel and one rank: a JSON header and a body of bytes, over a socket.

The header is JSON so that a grader can read what an untrusted rank sent without unpickling it.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any

_SIZES = struct.Struct("<IQ")
MAX_HEADER_BYTES = 1 << 22  # an exception with its causes is some 100 KB at the most
MAX_BODY_BYTES = 1 << 48  # more than any machine holds


class Forged(ValueError):
    """Bytes that no rank's own code sends: student code wrote to a line that isn't its own."""


class TooLarge(ValueError):
    """An output of more bytes than are taken."""


def pack(header: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return _SIZES.pack(len(text), len(body)) + text + body


def send(sock: socket.socket, header: dict[str, Any], body: bytes = b"") -> None:
    sock.sendall(pack(header, body))


def receive(sock: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Wait for one message; raises EOFError when the other side is gone."""
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
    """The one message that a memory file holds; all ranks read it."""
    inbox = Inbox()
    inbox.feed(os.pread(fd, os.fstat(fd).st_size, 0))
    message = inbox.next()
    assert message is not None
    return message


class Inbox:
    """Bytes as they come in; messages as they are complete."""

    def __init__(self, max_body_bytes: int | None = None) -> None:
        self.buffer = bytearray()
        self.max_body_bytes = max_body_bytes

    def feed(self, data: bytes) -> None:
        self.buffer += data

    def next(self) -> tuple[dict[str, Any], bytes] | None:
        """The next whole message, or None; raises Forged or TooLarge (ValueError)."""
        if len(self.buffer) < _SIZES.size:
            return None
        header_bytes, body_bytes = _SIZES.unpack_from(self.buffer)
        if header_bytes > MAX_HEADER_BYTES or body_bytes > MAX_BODY_BYTES:
            raise Forged("this is not a message of a rank")
        begin = _SIZES.size + header_bytes  # of the body
        is_too_large = self.max_body_bytes is not None and body_bytes > self.max_body_bytes
        end = begin if is_too_large else begin + body_bytes
        if len(self.buffer) < end:
            return None
        try:
            header = json.loads(bytes(self.buffer[_SIZES.size : begin]))
        except (ValueError, RecursionError):
            header = None
        if not isinstance(header, dict):
            raise Forged("this is not a message of a rank")
        if is_too_large:  # asked only now: noise claims to be of any size
            raise TooLarge(
                f"the output is {body_bytes:,} bytes; at most {self.max_body_bytes:,} are taken"
            )
        body = bytes(self.buffer[begin:end])
        del self.buffer[:end]
        return header, body
