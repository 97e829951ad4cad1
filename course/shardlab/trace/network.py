"""Reads a network namespace from outside: its TCP sockets and what its interfaces have sent."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import NamedTuple

from shardlab.trace import gloo_collectives, wire


class Network(NamedTuple):
    """Sockets that were opened in the namespace; they may be used in any process."""

    sockets: socket.socket  # lists its open TCP sockets
    closings: socket.socket  # gets a message about each that is closed
    interfaces: socket.socket  # reads the counters of its interfaces
    tap: socket.socket | None = None  # counts gloo's collectives; None without CAP_NET_RAW

    @classmethod
    def here(cls) -> Network:
        """The namespace of this process."""
        sockets = wire.open_netlink(), wire.open_closings(), wire.open_interfaces()
        return cls(*sockets, gloo_collectives.open_tap())

    @classmethod
    def of(cls, fds: Sequence[int]) -> Network:
        """From the descriptors of another process's `Network`."""
        return cls(*(socket.socket(fileno=fd) for fd in fds))

    @property
    def fds(self) -> list[int]:
        return [sock.fileno() for sock in self if sock is not None]

    def close(self) -> None:
        for sock in self:
            if sock is not None:
                sock.close()
