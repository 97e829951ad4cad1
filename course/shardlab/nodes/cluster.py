"""The client's side of a cluster: what keeps it, reads its counters and pulls its cables."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from typing import Any

from shardlab.errors import LaunchError, NodesUnavailable
from shardlab.trace import wire
from shardlab.trace.network import Network

MAX_FDS = 8
_RTM_NEWLINK, _REQUEST_WITH_ANSWER, _IFF_UP = 16, 5, 1  # linux/rtnetlink.h, netlink.h, if.h


class Cluster:
    """The namespaces of ``nodes`` nodes; `fileno` is readable while more of them arrive."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.namespaces: list[list[int]] = []  # by node: descriptors, to be entered in this order
        self.networks: list[Network] = []  # by node: what reads its counters
        self.ports: list[int] = []  # by node: the interface of the switch
        self._cleanup = contextlib.ExitStack()
        self._incoming, self.reply = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._cleanup.callback(self._incoming.close)

    def fileno(self) -> int:
        return self._incoming.fileno()

    @property
    def is_complete(self) -> bool:
        return len(self.namespaces) == self.nodes

    def read(self) -> None:
        """Take the next descriptors; raises LaunchError if there will be none."""
        packet, fds, _, _ = socket.recv_fds(
            self._incoming, 1 << 16, MAX_FDS, socket.MSG_CMSG_CLOEXEC
        )
        if not packet:
            raise LaunchError("the process that makes the nodes was killed")
        message: dict[str, Any] = json.loads(packet)
        counters, kept = fds[: message.get("counters", 0)], fds[message.get("counters", 0) :]
        for fd in kept:
            self._cleanup.callback(os.close, fd)
        if "missing" in message:
            raise NodesUnavailable(f"nodes={self.nodes}: {message['missing']}")
        if "ports" in message:
            self.ports = message["ports"]
            self._switch = kept[0]
        else:
            self.networks.append(Network.of(counters))
            self._cleanup.callback(self.networks[-1].close)
            self.namespaces.append(kept)

    def unplug(self, node: int) -> None:
        """Take down the switch's end of a node's cable. Raises OSError."""
        # struct ifinfomsg: family, type, index, flags, which flags to change
        request = struct.pack("=BxHiII", 0, 0, self.ports[node], 0, _IFF_UP)
        header = struct.pack("=IHHII", 16 + len(request), _RTM_NEWLINK, _REQUEST_WITH_ANSWER, 1, 0)
        with socket.socket(fileno=os.dup(self._switch)) as switch:
            switch.sendto(header + request, (0, 0))
            (code,) = struct.unpack_from("=i", switch.recv(1 << 16), 16)
        if code:
            raise OSError(-code, f"node {node} could not be unplugged: {os.strerror(-code)}")

    def link_bytes(self) -> list[tuple[int, int]]:
        """By node: all bytes that it has sent to the switch and received from it."""
        with socket.socket(fileno=os.dup(self._switch)) as switch:
            counted = wire.interface_counters(switch)
        return [(counted[port].received_bytes, counted[port].sent_bytes) for port in self.ports]

    def close(self) -> None:
        self._cleanup.close()
