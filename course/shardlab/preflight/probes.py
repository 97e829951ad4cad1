"""Connections between nodes on random ports, as gloo and NCCL open them, and their speed."""

from __future__ import annotations

import contextlib
import socket
import statistics
import threading
import time
from dataclasses import dataclass

CONNECT_S = 3.0
PINGS = 20
BLOCK_BYTES = 1 << 18
SEND_S = 1.0


@dataclass(frozen=True)
class Speed:
    latency_s: float  # one way: half a round trip, the median
    bytes_per_s: float


class Echo(threading.Thread):
    """Accepts connections on a port that the system chooses: answers pings, then reads a stream."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.server = socket.create_server(("", 0))
        self.port = int(self.server.getsockname()[1])

    def run(self) -> None:
        with contextlib.suppress(OSError):  # closed: done
            while True:
                connection, _ = self.server.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            for _ in range(PINGS):
                connection.sendall(connection.recv(1))
            received = 0
            while data := connection.recv(BLOCK_BYTES):
                received += len(data)
            connection.sendall(received.to_bytes(8, "big"))

    def close(self) -> None:
        self.server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self.server.close()


def probe(address: str, port: int) -> Speed:
    """Raises OSError if there is no way to that port."""
    with socket.create_connection((address, port), timeout=CONNECT_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        rounds = []
        for _ in range(PINGS):
            start = time.monotonic()
            sock.sendall(b".")
            sock.recv(1)
            rounds.append(time.monotonic() - start)
        block, start = bytes(BLOCK_BYTES), time.monotonic()
        sock.settimeout(60)  # a slow link empties its buffers
        while time.monotonic() < start + SEND_S:
            sock.sendall(block)
        sock.shutdown(socket.SHUT_WR)
        received = int.from_bytes(sock.recv(8), "big")
        return Speed(statistics.median(rounds) / 2, received / (time.monotonic() - start))
