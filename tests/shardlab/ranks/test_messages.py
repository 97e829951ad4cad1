"""Messages between the kernel and a rank."""

from __future__ import annotations

import os
import socket
import struct
import threading

import pytest

from shardlab.ranks import messages
from shardlab.ranks.client import memory_file


def test_messages_do_not_depend_on_how_the_stream_is_split() -> None:
    stream = messages.pack({"is": "a", "n": 1}, b"body") + messages.pack({"is": "b"})
    for size in (1, 2, 7, len(stream)):
        inbox, found = messages.Inbox(), []
        for at in range(0, len(stream), size):
            inbox.feed(stream[at : at + size])
            while (message := inbox.next()) is not None:
                found.append(message)
        assert found == [({"is": "a", "n": 1}, b"body"), ({"is": "b"}, b"")]


def test_a_large_body_through_a_socket() -> None:
    ours, theirs = socket.socketpair()
    body = os.urandom(1 << 22)
    with ours, theirs:
        sender = threading.Thread(target=messages.send, args=(theirs, {"is": "x"}, body))
        sender.start()
        assert messages.receive(ours) == ({"is": "x"}, body)
        sender.join()


def test_a_closed_connection_raises_eoferror() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(messages.pack({"is": "x"}, b"body")[:-1])
        theirs.close()
        with pytest.raises(EOFError):
            messages.receive(ours)


def test_reading_a_file_does_not_move_its_position() -> None:
    fd = memory_file("message", messages.pack({"n": 1}, b"program"))
    try:
        assert messages.read_file(fd) == messages.read_file(fd) == ({"n": 1}, b"program")
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<IQ", 1 << 30, 0),
        struct.pack("<IQ", 2, 0) + b"[]",
        struct.pack("<IQ", 2, 0) + b"{x",
        struct.pack("<IQ", 2, 0) + b"\xff\xff",
        pytest.param(
            struct.pack("<IQ", 100_000, 0) + b"[" * 100_000,
        ),
    ],
    ids=["huge header", "list", "not json", "not text", "nested too deeply"],
)
def test_invalid_messages_are_rejected(data: bytes) -> None:
    inbox = messages.Inbox()
    inbox.feed(data)
    with pytest.raises(ValueError):  # noqa: PT011  # JSONDecodeError is a ValueError too
        inbox.next()


def test_an_output_that_is_too_large_is_rejected_before_it_arrives() -> None:
    inbox = messages.Inbox(max_body_bytes=1000)
    inbox.feed(struct.pack("<IQ", 2, 1001) + b"{")
    assert inbox.next() is None
    inbox.feed(b"}")
    with pytest.raises(messages.TooLarge, match="1,001 bytes; the limit is 1,000"):
        inbox.next()


def test_random_bytes_count_as_forged_whatever_size_they_claim() -> None:
    inbox = messages.Inbox(max_body_bytes=1000)
    inbox.feed(struct.pack("<IQ", 20, 1 << 60) + bytes(range(200, 250)))
    with pytest.raises(messages.Forged):
        inbox.next()
