"""The filter that finds gloo's collectives, attached to a socketpair and fed with packets."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator

import pytest

from shardlab.trace import gloo_collectives
from shardlab.trace.gloo_collectives import HEADER_BYTES, PAYLOAD, RECV_READY, SEND_READY

MAX_TAG = 2**31 - 1


@pytest.fixture(scope="module")
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with near, far:
        gloo_collectives.attach(far)
        far.setblocking(False)
        yield near, far


def is_seen(ends: tuple[socket.socket, socket.socket], packet: bytes) -> bool:
    near, far = ends
    near.send(packet)
    try:
        far.recv(1)
    except BlockingIOError:
        return False
    return True


def in_tcp(payload: bytes, ip_options: int = 0, tcp_options: int = 12, protocol: int = 6) -> bytes:
    """A packet as on loopback; only the header fields that the filter reads are filled in."""
    ip = struct.pack(">B8xB10x", 0x40 | (5 + ip_options // 4), protocol) + bytes(ip_options)
    tcp = struct.pack(">12xB7x", (5 + tcp_options // 4) << 4) + bytes(tcp_options)
    return ip + tcp + payload


def slot_of(kind: int, tag: int) -> int:
    return kind << 56 | tag << 24


def header(opcode: int, slot: int, length: int, offset: int = 0, remote: int = 0) -> bytes:
    nbytes = HEADER_BYTES + (length if opcode == PAYLOAD else 0)
    return struct.pack("<6Q", nbytes, opcode, slot, offset, length, remote)


def sent(tag: int, payload: bytes) -> bytes:
    return header(PAYLOAD, tag, len(payload)) + payload


@pytest.mark.parametrize("kind", range(1, 9))
@pytest.mark.parametrize("opcode", [SEND_READY, RECV_READY])
def test_an_announcement_of_a_collective_is_seen(
    ends: tuple[socket.socket, socket.socket], kind: int, opcode: int
) -> None:
    for tag, length in ((0, 0), (7, 40), (2**32 - 1, 2**31)):
        announcement = header(opcode, slot_of(kind, tag), length)
        assert is_seen(ends, in_tcp(announcement))
        assert is_seen(ends, in_tcp(announcement, ip_options=8, tcp_options=0))
        assert not is_seen(ends, in_tcp(announcement, protocol=17))
        assert not is_seen(ends, in_tcp(announcement[:-1]))


@pytest.mark.parametrize("tag", [0, 1, 255, 2**24, MAX_TAG])
def test_sends_and_receives_are_not_seen(
    ends: tuple[socket.socket, socket.socket], tag: int
) -> None:
    for opcode in (SEND_READY, RECV_READY):
        for length in (0, 4, 10**6, 2**31):
            assert not is_seen(ends, in_tcp(header(opcode, tag, length)))
    assert not is_seen(ends, in_tcp(sent(tag, bytes(5000))))
    assert not is_seen(ends, in_tcp(b""))


@pytest.mark.parametrize("before", [1, 2, gloo_collectives.MESSAGES - 1])
def test_earlier_messages_in_the_segment_do_not_hide_a_collective(
    ends: tuple[socket.socket, socket.socket], before: int
) -> None:
    collective = header(RECV_READY, slot_of(2, 5), 40)
    chance = random.Random(before)
    small = [header(SEND_READY, 3, 8), sent(4, b"12345678"), sent(0, b""), sent(9, bytes(1999))]
    ahead = b"".join(chance.choices(small, k=before))
    assert is_seen(ends, in_tcp(ahead + collective))
    assert not is_seen(ends, in_tcp(ahead + header(RECV_READY, 5, 40)))


def test_a_tensor_is_never_mistaken_for_a_collective(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """Segments that start inside a tensor: random bytes, numbers, or constant bytes."""
    chance = random.Random(2026)
    tensors = [bytes([byte]) * 200 for byte in range(256)]
    tensors += [chance.randbytes(200) for _ in range(2000)]
    for code, largest in (("q", 50), ("i", 50), ("h", 50), ("b", 50), ("q", 2**62)):
        tensors += [
            struct.pack(f"<48{code}", *(chance.randint(0, largest) for _ in range(48)))
            for _ in range(500)
        ]
    tensors += [struct.pack("<48d", *(chance.gauss(0, 1) for _ in range(48))) for _ in range(500)]
    for tensor in tensors:
        assert not is_seen(ends, in_tcp(tensor))
        assert not is_seen(ends, in_tcp(sent(1, tensor)))


def test_an_announcement_with_one_wrong_bit_is_not_seen(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """Except in the slot and the lower half of the length."""
    announcement = header(SEND_READY, slot_of(4, 0), 1000)
    free = {*range(16 * 8, 24 * 8), *range(32 * 8, 36 * 8), 8 * 8}  # opcode 2 or 3: bit 64
    for bit in set(range(HEADER_BYTES * 8)) - free:
        changed = bytearray(announcement)
        changed[bit // 8] ^= 1 << bit % 8
        assert not is_seen(ends, in_tcp(bytes(changed))), bit
    assert is_seen(ends, in_tcp(announcement))
