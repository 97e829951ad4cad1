"""Outside: a worker's sandbox, and its containers for runs of ranks and for notebooks."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import psutil

from autograder.sandbox import bubblewrap
from autograder.sandbox.cgroup import ControlGroup
from autograder.sandbox.contained import Ending
from autograder.sandbox.limits import Limits
from shardlab.errors import LaunchError
from shardlab.ranks import engines
from shardlab.ranks.client import Channel, memory_file
from shardlab.trace.network import Network

START_TIMEOUT_S = 300.0  # includes importing torch and DeepSpeed from a cold disk
END_TIMEOUT_S = 60.0
PID_ATTEMPTS = 10
RequestSockets = Mapping[str, socket.socket]  # by kind: of fork servers shared by processes
NOTHING_USED = {"cpu_s": 0.0, "peak_bytes": 0}  # peak_bytes: of the largest container, 0 if unknown
_CREDENTIALS = struct.Struct("3i")  # process, user, group


class LeftoverProcesses(RuntimeError):
    """A container ended but left processes behind, which should be impossible; grading stops."""


class SharedForkServer:
    """A fork server that this process's parent started; both have its request socket."""

    def __init__(self, request_socket: socket.socket) -> None:
        self.request_socket = request_socket

    @property
    def is_usable(self) -> bool:
        poll = select.poll()
        poll.register(self.request_socket, 0)  # only to see whether the other end is closed
        return not poll.poll(0)

    def why_unavailable(self) -> str:
        return "the fork server has exited"

    def close(self) -> None:
        self.request_socket.close()


class ForkServerProcess(SharedForkServer):
    """The preloaded process in bubblewrap (fork_server.py), one per engine."""

    def __init__(self, kind: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(ours)
        with theirs:
            self.process = subprocess.Popen(
                bubblewrap.fork_server_command(kind, theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )

    @property
    def is_usable(self) -> bool:
        return self.process.poll() is None

    def why_unavailable(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=1)
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), False)
        errors = (self.process.stderr.read() or b"").decode(errors="replace").strip()
        return errors[-2000:] or f"no answer (status {self.process.poll()})"

    def close(self) -> None:
        super().close()
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:  # in the middle of an import
            self.process.kill()
            self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


class Container(Channel):
    """A run's channel to PID 1 of its container."""

    def __init__(
        self,
        sock: socket.socket,
        limits: Limits,
        fork_server: SharedForkServer,
        usage: dict[str, float],
    ) -> None:
        super().__init__(sock)
        self.limits = limits
        self.usage = usage
        self.was_out_of_memory = False
        self._cpu_s: float | None = None  # set when it has ended
        pid, self.network = self._wait_for_start(fork_server)
        self.pid: int = pid
        self.networks = [self.network]
        self.pidfd = os.pidfd_open(self.pid)
        self.group = ControlGroup(limits.memory_bytes, limits.processes)
        self.group.add(self.pid)

    def _wait_for_start(self, fork_server: SharedForkServer) -> tuple[int, Network]:
        """PID 1's PID outside the container, and the container's network."""
        self.sock.settimeout(START_TIMEOUT_S)
        space = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(16)
        try:
            packet, ancillary, _, _ = self.sock.recvmsg(1 << 16, space, socket.MSG_CMSG_CLOEXEC)
        except (TimeoutError, ConnectionError):
            packet, ancillary = b"", []
        self.sock.settimeout(None)
        message = json.loads(packet) if packet else {}
        pid, fds = 0, list[int]()
        for _, kind, data in ancillary:
            if kind == socket.SCM_CREDENTIALS:
                pid = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0]
            elif kind == socket.SCM_RIGHTS:
                fds = [fd for (fd,) in struct.iter_unpack("i", data)]
        if not message.get("contained") or len(fds) < 3 or not pid:
            self.sock.close()
            for fd in fds:
                os.close(fd)
            why = message.get("refused") or fork_server.why_unavailable()
            raise LaunchError(f"could not start a container: {why}")
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        return pid, Network.of(fds)

    def receive(self) -> dict[str, Any] | None:
        """As from a rank server, with PIDs as seen outside the container."""
        message = super().receive()
        if message is not None and "pid" in message:
            message["pid"] = self._outer_pid(message["pid"])
        return message

    def _outer_pid(self, inner: int) -> int | None:
        """None if it has ended.

        Linux may leave out a process from a list of children that changes while it is read.
        """
        for _ in range(PID_ATTEMPTS):
            if found := self._find_child(inner):
                return found
            time.sleep(0.002)
        return None

    def _find_child(self, inner: int) -> int | None:
        with contextlib.suppress(OSError):
            with open(f"/proc/{self.pid}/task/{self.pid}/children") as file:
                children = file.read().split()
            for outer in children:
                with open(f"/proc/{outer}/status") as file:
                    line = next(line for line in file if line.startswith("NSpid:"))
                if int(line.split()[-1]) == inner:
                    return int(outer)
        return None

    def build(self, op: str, report_fd: int) -> None:
        """Compiles outside, where a compiler and a writable cache exist; blocks until done."""
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "shardlab.ranks.builds", op],
            stdin=subprocess.DEVNULL,
            stdout=report_fd,
            stderr=report_fd,
            env={**os.environ, **engines.environment_of("deepspeed")},
        )
        self.sock.send(json.dumps({"built": op, "exit": ended.returncode}).encode())

    def start_cells(self, sock_fd: int) -> None:
        socket.send_fds(self.sock, [b'{"cells": true}'], [sock_fd])

    def interrupt(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.send(b'{"interrupt": true}')

    def kill(self, patience_s: float | None = None) -> list[dict[str, Any]]:
        """Kills all its processes and waits for their end; else raises LeftoverProcesses."""
        if self.sock.fileno() < 0:  # it has ended
            return []
        self.network.close()  # before the container's last copies are closed (fork_server.py)
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
        ended = self._wait_for_end(2.0)
        if not ended:  # busy or out of memory: killing PID 1 ends the whole namespace
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, 9)
            ended = self._wait_for_end(END_TIMEOUT_S)
        messages = []
        with self.sock, contextlib.suppress(OSError):
            self.sock.settimeout(0)
            while (message := super().receive()) is not None:
                messages.append(message)
        self.was_out_of_memory = self.group.out_of_memory
        self._cpu_s = self.cpu_s()
        self.usage["cpu_s"] += self._cpu_s
        self.usage["peak_bytes"] = max(self.usage["peak_bytes"], self.group.peak_bytes)
        os.close(self.pidfd)
        left = self.group.remove()
        if left or not ended:
            raise LeftoverProcesses(f"a container ended and left processes: {left or self.pid}")
        return messages

    def _wait_for_end(self, seconds: float) -> bool:
        """PID 1 is reported as ended only after all others in its namespace have ended."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(int(seconds * 1000)))

    def cpu_s(self) -> float:
        """CPU time of all its processes; without control groups, only of reaped ones."""
        used_s = self.group.cpu_s if self._cpu_s is None else self._cpu_s
        if used_s is None:
            with contextlib.suppress(psutil.Error):
                used_s = sum(psutil.Process(self.pid).cpu_times()[:4])  # includes its children's
        return used_s or 0.0


class SandboxedHost:
    """For `RankSet(host=...)`: every run in a separate container."""

    def __init__(self, limits: Limits, fork_servers: RequestSockets) -> None:
        self.limits = limits
        self.usage = dict(NOTHING_USED)
        self._fork_servers: dict[str, SharedForkServer] = {
            kind: SharedForkServer(sock.dup()) for kind, sock in fork_servers.items()
        }
        self._lock = threading.Lock()

    def process_settings(self) -> dict[str, Any]:
        """Without anything from this process's environment."""
        environment = bubblewrap.environment("torch")
        return {"environment": environment, "cwd": "/tmp", "sys_path": None, "argv": [""]}

    def open_channel(self, kind: str, setup_fd: int, store_fd: int) -> Container:
        with self._lock:
            fork_server = self._fork_servers.get(kind)
            if fork_server is None or not fork_server.is_usable:
                if fork_server is not None:
                    fork_server.close()
                fork_server = self._fork_servers[kind] = ForkServerProcess(kind)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with theirs:
            limits = json.dumps(asdict(self.limits)).encode()
            try:
                fds = [theirs.fileno(), store_fd, setup_fd]
                socket.send_fds(fork_server.request_socket, [limits], fds)
            except OSError as error:
                ours.close()
                raise LaunchError(f"no sandbox: {fork_server.why_unavailable()}") from error
        return Container(ours, self.limits, fork_server, self.usage)

    def discard(self, kind: str) -> None:
        """A container's PID 1 was killed; the fork server keeps running."""

    def close(self) -> None:
        for fork_server in self._fork_servers.values():
            fork_server.close()
        self._fork_servers.clear()


class Cells:
    """A container that runs a notebook's cells; ``sock`` connects to autograder.guest.kernel."""

    def __init__(self, host: SandboxedHost, kind: str) -> None:
        setup_fd, store_fd = memory_file("shardlab-none"), memory_file("shardlab-none")
        try:
            self.container = host.open_channel(kind, setup_fd, store_fd)
        finally:
            os.close(setup_fd)
            os.close(store_fd)
        self.sock, theirs = socket.socketpair()
        with theirs:
            self.container.start_cells(theirs.fileno())
        started = self.container.receive() or {}
        if not started.get("pid"):
            self.kill()
            raise LaunchError(f"the notebook's process could not be started: {started}")
        self.pid: int = started["pid"]
        self.exit_code: int | None = None

    def __enter__(self) -> Cells:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.sock.close()

    def interrupt(self) -> None:
        self.container.interrupt()

    def kill(self) -> None:
        for message in self.container.kill():
            self.exit_code = message.get("exit", self.exit_code)

    def cpu_s(self) -> float:
        return self.container.cpu_s()

    def why_ended(self) -> Ending:
        self.kill()
        if self.container.was_out_of_memory:
            limit_mb = self.container.limits.memory_bytes // 1_000_000
            return Ending(f"it needed more than {limit_mb:,} MB of memory", by_limit=True)
        return Ending.from_exit_code(self.exit_code)


class Sandbox:
    """One per worker process, open until that process ends."""

    def __init__(self, limits: Limits, kind: str, fork_servers: RequestSockets) -> None:
        """``kind``: of the rank server that cells use; raises Unavailable."""
        bubblewrap.program()
        self.limits = limits
        self.kind = kind
        self.host = SandboxedHost(limits, fork_servers)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.host.close()

    def cells(self) -> Cells:
        return Cells(self.host, self.kind)

    def take_usage(self) -> dict[str, float]:
        """What containers have used since the last call."""
        used, self.host.usage = self.host.usage, dict(NOTHING_USED)
        return used
