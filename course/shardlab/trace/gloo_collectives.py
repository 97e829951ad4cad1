"""Counts gloo's collectives from outside, from the headers of its messages on the network.

Each gloo message on a TCP connection starts with six little-endian 64-bit words: total bytes, an
opcode, a *slot*, an offset, payload bytes, an offset at the receiver (gloo/transport/tcp/pair.h).
Each send and each receive announces itself to the other side with a header-only message.  The slot
of a collective has its kind in the upper 8 bits (gloo/types.h: 2 is allgather, 4 allreduce); the
slot of torch's send and recv is the tag, which has 31 bits.

A filter on a packet socket lets the operating system find and count these announcements: this
needs no process and no copies, and no packet is lost to a full buffer.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from functools import cache

HEADER_BYTES = 48
PAYLOAD, SEND_READY, RECV_READY = 1, 2, 3  # opcodes
MAX_KIND = 31  # gloo has kinds 1 to 8
MESSAGES = 16  # checked per segment; nearly all segments have one
_ETH_P_IP, _SO_ATTACH_FILTER, _SOL_PACKET, _PACKET_STATISTICS = 0x0800, 26, 263, 6

# Classic BPF: A is the last loaded value, X the position of the current header.  A load past the
# packet's end drops it.
_LOAD_BYTE_AT, _X_AFTER_IP = 0x30, 0xB1
_LOAD, _LOAD_BYTE = 0x40, 0x50  # at X + k
_AND, _SHIFT_LEFT, _SHIFT_RIGHT, _ADD_X = 0x54, 0x64, 0x74, 0x0C
_STORE, _X_FROM_STORE, _X_FROM_A = 0x02, 0x61, 0x07
_JUMP_EQUAL, _JUMP_GREATER, _RETURN = 0x15, 0x25, 0x06

Line = tuple[str] | tuple[int, int] | tuple[int, int, str, str]
# a label; code and k; a jump: labels if true, if false ("" is the next line)


def open_tap() -> socket.socket | None:
    """A packet socket that stays in the network namespace in which it is opened; None without
    CAP_NET_RAW there.  It costs nothing until `start`."""
    try:
        return socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
    except OSError:
        return None


def start(tap: socket.socket) -> None:
    """Count packets on all interfaces from now on."""
    attach(tap)
    tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)  # nobody reads the packets themselves
    # struct sockaddr_ll of all interfaces, which Python's `bind` cannot name.  Gloo uses IPv4 if an
    # interface has both.
    address = struct.pack("=HHi12x", socket.AF_PACKET, socket.htons(_ETH_P_IP), 0)
    if ctypes.CDLL(None, use_errno=True).bind(tap.fileno(), address, len(address)):
        raise OSError(ctypes.get_errno(), "bind")


def count_new(tap: socket.socket) -> int:
    """The number of segments with a message of a collective since the last call."""
    # struct tpacket_stats: packets, dropped packets
    stats = tap.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
    return int(struct.unpack("=II", stats)[0])


def attach(sock: socket.socket) -> None:
    """Filter a socket's IPv4 packets: only announcements of collectives pass."""
    program = filter_program()
    buffer = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog {unsigned short len; struct sock_filter *filter;}
    pointer = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)


@cache
def filter_program() -> bytes:
    """Parses a TCP segment as gloo messages, one after another from its first byte.

    A long tensor continues in segments that start in the middle of its data.  They are parsed like
    all others; `_check_message` makes sure that no tensor is mistaken for a header.
    """
    to_payload: list[Line] = [
        (_LOAD_BYTE_AT, 9),
        (_JUMP_EQUAL, socket.IPPROTO_TCP, "tcp", ""),
        (_RETURN, 0),
        ("tcp",),
        (_X_AFTER_IP, 0),
        (_LOAD_BYTE, 12),  # the upper 4 bits: length of TCP's header in words of 4 bytes
        (_AND, 0xF0),
        (_SHIFT_RIGHT, 2),
        (_ADD_X, 0),
        (_X_FROM_A, 0),
    ]
    return (
        _assemble(to_payload) + _assemble(_check_message()) * MESSAGES + _assemble([(_RETURN, 0)])
    )


def _check_message() -> list[Line]:
    """Check the header at X: pass if it announces a collective, drop if it is not a header.

    Otherwise move X past this message.

    A tensor may contain any bytes.  So all 384 bits of an announcement are checked except the slot
    and the lower half of the length: only a copy of an announcement passes.
    """

    def equals(at: int, value: int) -> list[Line]:
        return [(_LOAD, at), (_JUMP_EQUAL, _as_loaded(value), "", "no")]

    return [
        *equals(4, 0),  # the upper half of the total bytes
        *equals(12, 0),  # and of the opcode
        (_LOAD, 8),
        (_JUMP_EQUAL, _as_loaded(PAYLOAD), "on", ""),
        (_JUMP_EQUAL, _as_loaded(SEND_READY), "announced", ""),
        (_JUMP_EQUAL, _as_loaded(RECV_READY), "", "no"),
        ("announced",),
        (_LOAD_BYTE, 23),  # the kind of collective, 0 for a send or a receive
        (_JUMP_EQUAL, 0, "on", ""),
        (_JUMP_GREATER, MAX_KIND, "no", ""),
        *equals(0, HEADER_BYTES),
        *equals(24, 0),  # the offset
        *equals(28, 0),
        *equals(36, 0),  # the upper half of the length
        *equals(40, 0),  # the offset at the receiver
        *equals(44, 0),
        (_RETURN, 1),
        ("no",),
        (_RETURN, 0),
        ("on",),  # X += total bytes: 24 bits suffice, a segment has at most 64 KiB
        (_LOAD_BYTE, 2),
        (_SHIFT_LEFT, 16),
        (_ADD_X, 0),
        (_STORE, 0),
        (_LOAD_BYTE, 1),
        (_SHIFT_LEFT, 8),
        (_STORE, 1),
        (_LOAD_BYTE, 0),
        (_X_FROM_STORE, 1),
        (_ADD_X, 0),
        (_X_FROM_STORE, 0),
        (_ADD_X, 0),
        (_X_FROM_A, 0),
    ]


def _as_loaded(value: int) -> int:
    """A little-endian word as the filter loads it: big-endian."""
    return int.from_bytes(value.to_bytes(4, "little"), "big")


def _assemble(lines: list[Line]) -> bytes:
    position, position_of = 0, {}
    for line in lines:
        if len(line) == 1:
            position_of[line[0]] = position
        else:
            position += 1
    code = b""
    for line in lines:
        if len(line) == 2:
            code += struct.pack("=HBBI", line[0], 0, 0, line[1])
        elif len(line) == 4:
            after = len(code) // 8 + 1
            jumps = [position_of[to] - after if to else 0 for to in line[2:]]
            code += struct.pack("=HBBI", line[0], *jumps, line[1])
    return code
