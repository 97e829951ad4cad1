"""Bytes on the wire, from the operating system's counters (Linux).

Every TCP socket keeps a ``struct tcp_info`` (linux/tcp.h).  The bytes a program has written to
a socket are ``bytes_sent - bytes_retrans + notsent_bytes``, three fields that one read returns
together, so there is no need to wait for acknowledgements.  A process reads them from its own
sockets with getsockopt; another process, such as a grader, reads them through netlink's sock_diag.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Generator, Iterator
from typing import NamedTuple

TCP_INFO_BYTES = 216
_NOTSENT_AT, _SENT_AT, _RETRANS_AT = 144, 200, 208
_NETLINK_SOCK_DIAG, _TCPDIAG_GETSOCK, _INET_DIAG_INFO = 4, 18, 2
_NLM_F_REQUEST, _NLM_F_REQUEST_DUMP, _NLMSG_ERROR, _NLMSG_DONE = 1, 0x301, 2, 3
_CLOSED_SOCKETS = 1 << 0 | 1 << 2  # multicast groups: closed sockets of IPv4, of IPv6
_RTM_NEWSTATS, _RTM_GETSTATS, _LOOPBACK_INDEX = 92, 94, 1
_HEADER_BYTES = 20 + 32  # IPv4, and TCP with timestamps
_ETHERNET_BYTES = 14  # a header that other interfaces count as well
_OPEN_STATES = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8  # established, or closed by one side only

_ATTRIBUTE, _INODE, _PORTS = struct.Struct("=HH"), struct.Struct("=I"), struct.Struct(">HH")
_ADDRESSES = struct.Struct(">I12xI")
_NOTSENT, _SENT, _QUEUES = struct.Struct("<I"), struct.Struct("<QQ"), struct.Struct("=II")

NODE_NETWORK = "10.77.0."  # node 0 has address 1
_LOOPBACK = int.from_bytes(socket.inet_aton("127.0.0.1"))
_NODES = (int.from_bytes(socket.inet_aton(NODE_NETWORK + "0")) ^ _LOOPBACK) >> 8
_PORT_BITS, END_BITS, _IPV4 = 16, 48, 2

# Local and remote end: a number of 48 bits, which is the port at 127.0.0.1, and above it has how
# the last 32 bits of another address differ from that.
Connection = tuple[int, int]


def written_bytes(tcp_info: bytes) -> int:
    return _sent_and_written(tcp_info)[1]


def _sent_and_written(tcp_info: bytes) -> tuple[int, int]:
    (notsent,) = _NOTSENT.unpack_from(tcp_info, _NOTSENT_AT)
    sent, retransmitted = _SENT.unpack_from(tcp_info, _SENT_AT)
    return sent, sent - retransmitted + notsent


def own_connections() -> dict[Connection, int]:
    """Bytes that this process has written to each of its connected TCP sockets."""
    found: dict[Connection, int] = {}
    for fd in _socket_fds("self"):
        try:
            with socket.socket(fileno=os.dup(fd)) as sock:
                if sock.type != socket.SOCK_STREAM or sock.family == socket.AF_UNIX:
                    continue
                ports = _end(sock.getsockname()), _end(sock.getpeername())
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
                found[ports] = written_bytes(info)
        except OSError:  # just closed, or not connected
            continue
    return found


def _end(address: tuple[str, int]) -> int:
    """One of the two numbers of a Connection."""
    host = address[0].partition("%")[0]
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    return (int.from_bytes(packed[-4:]) ^ _LOOPBACK) << _PORT_BITS | address[1]


def port(end: int) -> int:
    return end & (1 << _PORT_BITS) - 1


def duplicate_sockets(exclude: list[int]) -> list[int]:
    """Another descriptor for each socket of this process, which keeps its connection open.

    ``exclude``: descriptors from earlier calls, whose sockets are not duplicated again.
    """
    found = _socket_fds("self")
    held = {found.get(fd) for fd in exclude}
    duplicated = []
    for fd in {inode: fd for fd, inode in found.items() if inode not in held}.values():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as sock:
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                duplicated.append(sock.detach())
    return duplicated


class Socket(NamedTuple):
    """A TCP socket of some process, seen from outside."""

    inode: int
    connection: Connection
    sent_bytes: int  # put on the wire, including retransmissions
    written_bytes: int
    queued_bytes: int  # in its buffers: not read yet, or not acknowledged

    def on_node(self, node: int) -> Socket:
        """With the node in connections that can exist on each, as they do not use its address."""
        if all(end >> _PORT_BITS + 8 == _NODES for end in self.connection):
            return self
        local, remote = (end | node + 1 << END_BITS for end in self.connection)
        return self._replace(connection=(local, remote))


def sockets(netlink: socket.socket | None = None) -> list[Socket]:
    """All open sockets of a network namespace; raises OSError if they can't be read.

    ``netlink``: from ``open_netlink`` in that namespace; default: this process's namespace.
    """
    with contextlib.ExitStack() as stack:
        used = stack.enter_context(open_netlink()) if netlink is None else netlink
        return [
            Socket(inode, at, *_sent_and_written(info), queued)
            for inode, at, queued, info in _dump(used)
        ]


def inodes_of(pid: int) -> set[int]:
    """Inodes of a process's sockets; empty if it is gone."""
    return set(_socket_fds(str(pid)).values())


def open_netlink() -> socket.socket:
    """Reads the sockets of the network namespace in which it is opened, even if used elsewhere."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)


def open_closings() -> socket.socket:
    """Gets a message about each TCP socket that is closed from now on in the network namespace in
    which it is opened, even if used elsewhere."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 30)  # as large as allowed
    sock.bind((0, _CLOSED_SOCKETS))
    sock.setblocking(False)
    return sock


def closed_sockets(closings: socket.socket) -> Iterator[Socket]:
    """Those closed since the last call.  If they are too many for its buffer, some are missing."""
    while True:
        try:
            packet = closings.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:  # ENOBUFS: messages were lost
            continue
        for inode, at, queued, info in _messages(packet):
            yield Socket(inode, at, *_sent_and_written(info), queued)


def open_interfaces() -> socket.socket:
    """Reads the interfaces of the network namespace in which it is opened, even from elsewhere."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)


def sent_payload_bytes(interfaces: socket.socket) -> int:
    """What all interfaces have sent so far, loopback and links, minus TCP/IPv4 headers: an upper
    bound on the payload of all sockets of all processes, including closed ones."""
    return sum(
        counted.sent_bytes
        - counted.sent_packets * (_HEADER_BYTES + _ETHERNET_BYTES * (index != _LOOPBACK_INDEX))
        for index, counted in interface_counters(interfaces).items()
    )


class InterfaceCounters(NamedTuple):
    """All so far, with headers: the start of struct rtnl_link_stats64."""

    received_packets: int
    sent_packets: int
    received_bytes: int
    sent_bytes: int


def interface_counters(interfaces: socket.socket) -> dict[int, InterfaceCounters]:
    """By index, of the network namespace in which the socket was opened. Raises OSError."""
    request = struct.pack("=BxxxII", 0, 0, 1)  # struct if_stats_msg, a link's 64-bit counters
    header = struct.pack("=IHHII", 16 + len(request), _RTM_GETSTATS, _NLM_F_REQUEST_DUMP, 1, 0)
    interfaces.sendto(header + request, (0, 0))
    found: dict[int, InterfaceCounters] = {}
    while True:
        packet, at = interfaces.recv(1 << 16), 0
        while at < len(packet):
            length, kind = struct.unpack_from("=IH", packet, at)
            if kind == _NLMSG_DONE:
                return found
            if kind != _RTM_NEWSTATS:
                raise OSError("Linux did not report its interfaces' counters (RTM_GETSTATS)")
            (index,) = _INODE.unpack_from(packet, at + 16 + 4)
            # netlink's header, if_stats_msg, an attribute's header
            counters = struct.unpack_from("=QQQQ", packet, at + 16 + 12 + 4)
            found[index] = InterfaceCounters(*counters)
            at += (length + 3) & ~3


def _socket_fds(process: str) -> dict[int, int]:
    """{fd: inode} of a process's sockets; empty if it is gone."""
    found = {}
    try:
        with os.scandir(f"/proc/{process}/fd") as entries:
            for entry in entries:
                try:
                    target = os.readlink(entry.path)
                except OSError:
                    continue
                if target.startswith("socket:["):
                    found[int(entry.name)] = int(target[8:-1])
    except OSError:
        pass
    return found


_Diag = tuple[int, Connection, int, bytes]  # inode, connection, queued bytes, struct tcp_info


def _dump(netlink: socket.socket) -> Iterator[_Diag]:
    """All TCP sockets of the netlink's namespace.

    Linux scans its whole hash table for each request, which takes 2 ms.  Only its older request
    (struct inet_diag_req) covers IPv4 and IPv6 at once.
    """
    request = struct.pack("=3xB48xII", 1 << (_INET_DIAG_INFO - 1), _OPEN_STATES, 0)
    header = struct.pack("=IHHII", 16 + len(request), _TCPDIAG_GETSOCK, _NLM_F_REQUEST_DUMP, 1, 0)
    netlink.sendto(header + request, (0, 0))
    while True:
        if (yield from _messages(netlink.recv(1 << 18))):
            return


def _messages(packet: bytes) -> Generator[_Diag, None, bool]:
    """Returns whether it has the last message of a dump."""
    at = 0
    while at < len(packet):
        length, kind = struct.unpack_from("=IH", packet, at)
        if kind == _NLMSG_DONE:
            return True
        if kind == _NLMSG_ERROR:
            (code,) = struct.unpack_from("=i", packet, at + 16)
            raise OSError(-code, "Linux refused to list its TCP sockets (sock_diag)")
        yield from _parse(packet, at + 16, at + length)
        at += (length + 3) & ~3
    return False


def _parse(packet: bytes, start: int, stop: int) -> Iterator[_Diag]:
    """Parse one message. Must be fast: every case reads hundreds of sockets of dozens of ranks."""
    at = start + 72
    while at + 4 <= stop:
        length, kind = _ATTRIBUTE.unpack_from(packet, at)
        if kind == _INET_DIAG_INFO and length - 4 >= TCP_INFO_BYTES:
            (inode,) = _INODE.unpack_from(packet, start + 68)
            queued = sum(_QUEUES.unpack_from(packet, start + 56))
            local, remote = _PORTS.unpack_from(packet, start + 4)
            # An IPv4 address in a socket of IPv6 is the last of its four words.
            words_at = start + 8 if packet[start] == _IPV4 else start + 20
            source, target = _ADDRESSES.unpack_from(packet, words_at)
            local |= (source ^ _LOOPBACK) << _PORT_BITS
            remote |= (target ^ _LOOPBACK) << _PORT_BITS
            yield inode, (local, remote), queued, packet[at + 4 : at + length]
            return
        at += (length + 3) & ~3
