"""Inside: a preloaded process that forks a container for each run.

It starts in seconds, a container in milliseconds.  It runs no student code itself and takes
requests only from outside, so nothing in a container can reach it.

Requests are those of a rank server (shardlab.ranks.server), with the container's limits in each
packet.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import psutil

from autograder.sandbox import container, seccomp
from shardlab.ranks import client, rank, server
from shardlab.trace import gloo_collectives
from shardlab.trace.network import Network

FORKS_OF_A_CONTAINER = 6  # itself, its PID 1, and about four ranks
CELLS = "cells"  # in place of a rank's number: run a notebook's cells
CELLS_MODULE = "autograder.guest.kernel"


class ForkServer(server.Server):
    """Forwards every run to PID 1 of a new container."""

    def __init__(self, request_socket: socket.socket, kind: str) -> None:
        super().__init__(request_socket, kind)
        self.kind = kind
        self.containers: set[int] = set()

    @property
    def is_busy(self) -> bool:
        return bool(self.containers)

    def open_run(self) -> bool:
        assert self.request_socket is not None
        packet, fds, _, _ = socket.recv_fds(
            self.request_socket, server.MAX_PACKET, 3, socket.MSG_CMSG_CLOEXEC
        )
        if not packet:
            return False
        run = server.run_of(fds)
        self.preload_for(run)
        self.count_forks(FORKS_OF_A_CONTAINER)
        pid = os.fork()
        if pid == 0:
            self._become_container(run, json.loads(packet))
        self.containers.add(pid)
        run.channel.close()
        os.close(run.store_fd)
        os.close(run.setup_fd)
        return True

    def reap(self) -> None:
        while self.containers:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self.containers.discard(pid)

    def _become_container(self, run: server.ServedRun, limits: Mapping[str, float]) -> None:
        """In the forked child, which never returns; its own child is the container's PID 1."""
        try:
            container.die_with_parent()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.selector.close()
            assert self.request_socket is not None
            self.request_socket.close()
            container.enter_new_namespaces()
            # Closing it takes some ms, so this process, for which nobody waits, closes it last.
            tap = gloo_collectives.open_tap()
            first = os.fork()
            if first == 0:
                _serve_as_pid_1(run, self.kind, limits, tap)
            run.channel.close()
            _, status = os.waitpid(first, 0)
            os._exit(os.waitstatus_to_exitcode(status) & 0x7F)
        except BaseException as error:
            run.report(refused=f"{type(error).__name__}: {error}")
        finally:
            os._exit(70)


class FirstProcess(server.Server):
    """PID 1 of a container: a server of one run, whose children are isolated."""

    def __init__(self, kind: str, limits: Mapping[str, float]) -> None:
        super().__init__(None, kind)
        self.kind = kind
        self.limits = limits

    def handle_other_request(
        self, run: server.ServedRun, request: dict[str, Any], fds: list[int]
    ) -> None:
        if "cells" in request:
            self.fork(run, CELLS, fds)
        elif "interrupt" in request:
            for pid in run.rank_of:
                os.kill(pid, signal.SIGINT)
        else:  # compiled outside: reported as if this server had done it
            run.report(rank=request["built"], exit=request["exit"])

    def make_nodes(self, run: server.ServedRun, reply: int) -> None:
        container.allow_tracing()  # as for any process that maps users
        super().make_nodes(run, reply)

    def isolate(self, run: server.ServedRun, fds: list[int]) -> None:
        # Ranks could exchange data through what all of them inherit.
        container.close_all_but(0, 1, 2, run.store_fd, run.setup_fd, *fds)
        super().isolate(run, fds)
        settings = server.settings_of(run)
        may_connect = not settings or settings["may_connect"]
        hidden = settings["hide"] if settings else ()
        container.isolate(self.limits, sees_others=may_connect, hidden=hidden)

        def refuse_connections() -> None:
            os.close(run.store_fd)  # the ranks have met: nothing but student code needs it now
            seccomp.refuse_connections()

        rank.refuse_connections = refuse_connections
        rank.refuse_netlink = seccomp.refuse_netlink
        rank.refuse_hiding_places = seccomp.refuse_hiding_places

    def run_other_child(self, run: server.ServedRun, name: str, fds: list[int]) -> None:
        """Runs a notebook's cells, with a separate rank server for `launch` in a cell."""
        os.close(run.setup_fd)
        os.close(run.store_fd)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        own = _fork_rank_server()
        for kind in ("torch", self.kind):
            client.adopt_server(kind, own)
        seccomp.refuse_netlink()  # its ranks do this themselves, once they have connected
        importlib.import_module(CELLS_MODULE).main(socket.socket(fileno=fds[0]))


def _serve_as_pid_1(
    run: server.ServedRun, kind: str, limits: Mapping[str, float], tap: socket.socket | None
) -> None:
    try:
        container.become_first_process()
        with contextlib.ExitStack() as stack:
            network = Network.here()._replace(tap=tap)
            stack.callback(network.close)
            # The receiver gets this process's PID in its own namespace from the credentials.
            socket.send_fds(run.channel, [b'{"contained": true}'], network.fds)
        FirstProcess(kind, limits).serve_only(run)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(-1, signal.SIGKILL)
            while True:
                os.waitpid(-1, 0)
    except BaseException as error:
        run.report(refused=f"{type(error).__name__}: {error}")
    finally:
        os._exit(0)


def _fork_rank_server() -> client.RankServer:
    """A rank server forked from this process, with the same modules imported."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        return client.RankServer(ours, ForkedProcess(pid))
    try:
        ours.close()
        container.die_with_parent()
        own = server.Server(theirs, "torch")
        own.idle_work.clear()
        try:
            own.serve(parent)
        finally:
            own.stop()
    finally:
        os._exit(0)


class ForkedProcess(psutil.Process):
    """A forked child with the interface of subprocess.Popen."""

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        try:
            return int(super().wait(timeout) or 0)
        except psutil.TimeoutExpired as error:
            raise subprocess.TimeoutExpired(f"process {self.pid}", error.seconds) from None


def main() -> None:
    request_socket, kind = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    container.forbid_tracing()
    server.preload_for_kind(kind)
    server.preload(CELLS_MODULE)
    importlib.import_module(CELLS_MODULE).preload()
    ForkServer(request_socket, kind).serve(os.getppid())


if __name__ == "__main__":
    from autograder.sandbox import fork_server

    fork_server.main()
