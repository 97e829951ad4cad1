"""Messages between all nodes through the head node, at the port that torchrun will use."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any, TextIO

RETRY_S = 0.2


class Missing(Exception):
    """The message says who did not come, or what is not reachable, and what to do."""


class Head(threading.Thread):
    """On the head node: collects a line from every node, and sends all lines to each."""

    def __init__(self, port: int, nnodes: int, timeout_s: float) -> None:
        """Raises OSError if the port is in use."""
        super().__init__(daemon=True)
        self.nnodes, self.deadline = nnodes, time.monotonic() + timeout_s
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        self.server = socket.create_server(
            ("", port), family=family, dualstack_ipv6=family == socket.AF_INET6
        )

    def run(self) -> None:
        files: list[TextIO] = []
        try:
            while len(files) < self.nnodes:
                self.server.settimeout(max(0.01, self.deadline - time.monotonic()))
                connection, _ = self.server.accept()
                files.append(connection.makefile("rw", encoding="utf-8"))
            while lines := [file.readline() for file in files]:
                if not all(lines):
                    return
                answer = "[" + ",".join(map(str.strip, lines)) + "]\n"
                for file in files:
                    file.write(answer)
                    file.flush()
        except TimeoutError:
            for file in files:
                file.write(json.dumps({"came": len(files)}) + "\n")
                file.flush()
        except OSError:  # a node has gone
            return
        finally:
            self.server.close()


class Exchange:
    """This node's connection to the head node. Raises Missing."""

    def __init__(self, host: str, port: int, nnodes: int, timeout_s: float) -> None:
        self.nnodes, self.timeout_s = nnodes, timeout_s
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.socket = socket.create_connection((host, port), timeout=2)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise Missing(
                        f"nothing answers at {host}:{port} ({error}): is preflight running there, "
                        f"and does a firewall let port {port} through?"
                    ) from None
                time.sleep(RETRY_S)
        self.socket.settimeout(2 * timeout_s + 5)
        self.file = self.socket.makefile("rw", encoding="utf-8")

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()

    @property
    def own_address(self) -> str:
        return str(self.socket.getsockname()[0]).removeprefix("::ffff:")

    def all(self, own: Any) -> list[Any]:
        """What every node passes here, in the same order on all."""
        try:
            self.file.write(json.dumps(own) + "\n")
            self.file.flush()
            line = self.file.readline()
        except OSError:
            line = ""
        if not line:
            raise Missing("the head node has ended: look at its output")
        found = json.loads(line)
        if isinstance(found, dict):
            raise Missing(
                f"only {found['came']} of {self.nnodes} nodes came within {self.timeout_s:g} s: "
                "start the same command on every node"
            )
        return list(found)
