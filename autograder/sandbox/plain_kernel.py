"""Runs a notebook's cells without a sandbox: for tests and for --unsandboxed.

A rank server of one run starts the cells and ends the processes they leave behind:
``python -P -m autograder.sandbox.plain_kernel CHANNEL FILE_BYTES CPU_S``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil

from autograder.sandbox.contained import ContainedCells, Ending
from autograder.sandbox.limits import Limits
from shardlab.ranks import server
from shardlab.ranks.client import Channel

KILL_TIMEOUT_S = 10.0  # for a server that does not respond
_ROOT = Path(__file__).parents[2]


class Unsandboxed:
    """Replaces a sandbox: student code runs with the permissions of the grader."""

    host = None  # ranks come from this process's own rank server

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    def __enter__(self) -> Unsandboxed:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def cells(self) -> AbstractContextManager[ContainedCells]:
        return start_cells(self.limits)

    def take_usage(self) -> dict[str, float]:
        """Not counted."""
        return {}


@contextlib.contextmanager
def start_cells(limits: Limits) -> Iterator[PlainCells]:
    """A new process in a new folder, with limits on file size and CPU time."""
    with tempfile.TemporaryDirectory(prefix="shardlab-", ignore_cleanup_errors=True) as folder:
        cells = PlainCells(folder, limits)
        try:
            yield cells
        finally:
            cells.kill()
            cells.sock.close()


class PlainCells:
    """See contained.ContainedCells."""

    def __init__(self, folder: str, limits: Limits) -> None:
        self.sock, theirs = socket.socketpair()
        ours, their_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        numbers = (their_channel.fileno(), int(limits.file_bytes), int(limits.cpu_s))
        paths = [str(_ROOT), str(_ROOT / "course"), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONHASHSEED": "0",  # the same order of sets each time
            "OMP_NUM_THREADS": "1",
        }
        with theirs, their_channel:
            self.server = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, *map(str, numbers)],
                pass_fds=[their_channel.fileno()],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            socket.send_fds(ours, [b'{"cells": true}'], [theirs.fileno()])
        self.channel = Channel(ours)
        self.pid: int = (self.channel.receive() or {}).get("pid", 0)
        self.exit_code: int | None = None

    def interrupt(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        for message in self.channel.kill(KILL_TIMEOUT_S):
            self.exit_code = message.get("exit", self.exit_code)
        try:
            self.server.wait(KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # the cells stopped it
            self.server.kill()
            self.server.wait()

    def why_ended(self) -> Ending:
        self.kill()
        return Ending.from_exit_code(self.exit_code)

    def cpu_s(self) -> float:
        used_s = 0.0
        with contextlib.suppress(psutil.Error):
            server = psutil.Process(self.server.pid)
            for process in (server, *server.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    used_s += sum(process.cpu_times()[:4])  # includes its ended children
        return used_s


class CellsServer(server.Server):
    """A server of one run, whose only process runs the cells."""

    def __init__(self, file_bytes: int, cpu_s: int) -> None:
        super().__init__(None, "torch")
        self.limits = (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_CPU, cpu_s),
            (resource.RLIMIT_FSIZE, file_bytes),
        )

    def handle_other_request(
        self, run: server.ServedRun, request: dict[str, Any], fds: list[int]
    ) -> None:
        self.fork(run, "cells", fds)

    def run_other_child(self, run: server.ServedRun, name: str, fds: list[int]) -> None:
        from autograder.guest import kernel

        for kind, limit in self.limits:
            resource.setrlimit(kind, (limit, limit))
        kernel.main(socket.socket(fileno=fds[0]))


def main(channel_fd: int, file_bytes: int, cpu_s: int) -> None:
    ctypes.CDLL(None).prctl(server.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    unused = [os.open(os.devnull, os.O_RDONLY) for _ in ("store", "setup")]
    CellsServer(file_bytes, cpu_s).serve_only(server.run_of([channel_fd, *unused]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
