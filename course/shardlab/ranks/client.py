"""The kernel's side of the rank server: start it, open runs, fork ranks, and end them."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from shardlab.display.source import in_kernel
from shardlab.errors import LaunchError
from shardlab.ranks import engines, messages

if TYPE_CHECKING:
    from shardlab.trace.network import Network

# Inherited by every rank.  One thread and a fixed hash seed: the same run gives the same digits and
# the same order of sets on a machine with 2 cores and on one with 64.
SERVER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "GLOO_SOCKET_IFNAME": "lo",
    # inductor creates this folder on import, by default under /tmp
    "TORCHINDUCTOR_CACHE_DIR": os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "shardlab", "inductor"
    ),
}

OUR_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class ServerProcess(Protocol):
    """The part of subprocess.Popen used here."""

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


class RankServer:
    """A server that has been started.  Requests sent before it is ready wait in its socket."""

    def __init__(self, request_socket: socket.socket, process: ServerProcess) -> None:
        self.request_socket = request_socket
        self.process = process
        self.owner_pid = os.getpid()

    @classmethod
    def start(cls, kind: str = "torch") -> RankServer:
        """``kind``: one of engines.SERVERS. Does not wait until the server has imported torch."""
        request_socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, **SERVER_ENVIRONMENT, **engines.environment_of(kind)}
        import_path = [OUR_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
        # -P: a student's random.py next to the notebook must not replace the standard library's
        command = [sys.executable, "-P", "-m", "shardlab.ranks.server"]
        with theirs:
            process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid()), kind],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**environment, "PYTHONPATH": os.pathsep.join(import_path)},
                start_new_session=True,  # the kernel handles Ctrl-C in its terminal
            )
        return cls(request_socket, process)

    @property
    def usable(self) -> bool:
        return self.owner_pid == os.getpid() and self.process.poll() is None

    def open_channel(self, setup_fd: int, store_fd: int) -> Channel:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                socket.send_fds(
                    self.request_socket, [b"open"], [theirs.fileno(), store_fd, setup_fd]
                )
            except OSError:
                ours.close()
                raise
        return Channel(ours)

    def close(self) -> None:
        if self.owner_pid != os.getpid():  # a forked copy does not own the server
            return
        self.request_socket.close()
        try:
            self.process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:  # still importing: no run, so no ranks to end
            self.process.kill()
            self.process.wait()


class Channel:
    """One run's connection to the server."""

    # The ranks' network namespaces, one or one of each node; empty if ranks run in our own, whose
    # loopback others use too.
    networks: Sequence[Network] = ()
    pid: int | None = None  # of the first process in the ranks' container; None without one

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def make_nodes(self, reply_fd: int) -> None:
        """Have the run's nodes made; their descriptors come to the socket (nodes/cluster.py)."""
        socket.send_fds(self.sock, [json.dumps({messages.NODES: True}).encode()], [reply_fd])

    def fork(self, rank: int, fds: list[int]) -> None:
        """``fds``: RANK_FDS of server.py, then the namespaces that the rank enters."""
        socket.send_fds(self.sock, [json.dumps({"rank": rank}).encode()], fds)

    def build(self, op: str, report_fd: int) -> None:
        """Have a DeepSpeed op compiled; the builder's output goes to the file."""
        socket.send_fds(self.sock, [json.dumps({"build": op}).encode()], [report_fd])

    def request_stacks(self) -> None:
        """Make each rank write its main thread's stack to its stack file."""
        self.sock.send(json.dumps({"stacks": True}).encode())

    def receive(self) -> dict[str, Any] | None:
        """The next of {rank, pid}, {rank, failed}, {rank, exit, max_rss_bytes}; None at the end.

        For a builder, "rank" is the name of its op.
        """
        try:
            packet = self.sock.recv(1 << 16)
        except ConnectionResetError:  # the server was killed
            packet = b""
        return json.loads(packet) if packet else None

    def kill(self, patience_s: float | None = None) -> list[dict[str, Any]]:
        """End every process of the run; once all are gone, return the remaining messages.

        ``patience_s``: how long to wait for a server that has not answered yet.  A server that is
        still importing forks nothing for a cancelled run, so it is safe to stop waiting.
        """
        remaining = []
        with self.sock, contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
            self.sock.settimeout(patience_s)
            while (message := self.receive()) is not None:
                remaining.append(message)
        return remaining


_servers: dict[str, RankServer] = {}
_lock = threading.Lock()


def rank_server(kind: str = "torch") -> RankServer:
    """This process's server of that kind; starts one if there is none or it has died."""
    with _lock:
        server = _servers.get(kind)
        if server is None or not server.usable:
            server = _servers[kind] = RankServer.start(kind)
            atexit.register(server.close)
        return server


class Host(Protocol):
    """Forks the ranks of a run."""

    def process_settings(self) -> dict[str, Any]:
        """The ranks' environment, cwd, sys_path and argv."""

    def open_channel(self, kind: str, setup_fd: int, store_fd: int) -> Channel:
        """A run's connection to a server of that kind; raises LaunchError if none can start."""

    def discard(self, kind: str) -> None:
        """Forget a server that was killed; the next run starts a new one."""


class OwnHost:
    """This process's own rank servers; ranks share its environment and working directory."""

    def process_settings(self) -> dict[str, Any]:
        return {
            "environment": dict(os.environ),
            "cwd": os.getcwd(),
            "sys_path": sys.path,
            "argv": sys.argv,
        }

    def open_channel(self, kind: str, setup_fd: int, store_fd: int) -> Channel:
        try:
            return rank_server(kind).open_channel(setup_fd, store_fd)
        except OSError:  # it was just killed, and `usable` has not noticed yet
            self.discard(kind)
        try:
            return rank_server(kind).open_channel(setup_fd, store_fd)
        except OSError as error:
            raise LaunchError(
                f"the process that starts ranks could not be reached ({error})"
            ) from error

    def discard(self, kind: str) -> None:
        if kind in _servers:
            _servers[kind].close()


def adopt_server(kind: str, server: RankServer) -> None:
    """Use a server that was started by other means for this process's launches."""
    with _lock:
        _servers[kind] = server


def start_in_background() -> None:
    """Called at `import shardlab`, so that torch is already loaded at a notebook's first launch.

    Only in a kernel: other programs may use only a formula, and start it at their first launch.
    """
    if in_kernel():
        rank_server()


def warm_up(engine: str) -> None:
    """Start loading an engine now, in the background, so that a later launch need not wait for it.

    ``engine``: what that launch will use, on CPUs. Does nothing outside of a kernel: a program has
    no time to read, and a grader that runs a notebook provides the servers itself.
    """
    if engine not in engines.ENGINES:
        raise ValueError(f'warm_up loads "torch" or "deepspeed", not {engine!r}')
    if in_kernel():
        rank_server(engines.server_of(engine, "cpu"))


def memory_file(name: str, content: bytes = b"") -> int:
    """A file without a name; it disappears with the last process that has it open."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    return fd


def setup_file(setup: dict[str, Any]) -> int:
    return memory_file("shardlab-setup", messages.pack(setup))
