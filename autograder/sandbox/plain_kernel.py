"""A notebook's cells without walls: only for tests, and where --unsandboxed was typed.

Between the grader and the cells stands a rank server of one run, which ends what they leave behind:
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

PATIENCE_S = 10.0  # with a server that does not answer
_ROOT = Path(__file__).parents[2]


class Unsandboxed:
    """The stand-in for a sandbox: student code runs with the rights of whoever grades."""

    host = None  # ranks come from this process's own rank server

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    def __enter__(self) -> Unsandboxed:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def cells(self) -> AbstractContextManager[ContainedCells]:
        return start_cells(self.limits)

    def take_account(self) -> dict[str, float]:
        """Nobody counts."""
        return {}


@contextlib.contextmanager
def start_cells(limits: Limits) -> Iterator[PlainCells]:
    """A fresh process in a fresh folder, with its limits on files and processor time."""
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
            self.keeper = subprocess.Popen(
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
        for message in self.channel.kill(PATIENCE_S):
            self.exit_code = message.get("exit", self.exit_code)
        try:
            self.keeper.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:  # stopped, by what it keeps
            self.keeper.kill()
            self.keeper.wait()

    def why_ended(self) -> Ending:
        self.kill()
        return Ending.by(self.exit_code)

    def cpu_s(self) -> float:
        used_s = 0.0
        with contextlib.suppress(psutil.Error):
            keeper = psutil.Process(self.keeper.pid)
            for process in (keeper, *keeper.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    used_s += sum(process.cpu_times()[:4])  # with those of its dead children
        return used_s


class Keeper(server.Server):
    """A server of one run, whose only process runs the cells."""

    def __init__(self, file_bytes: int, cpu_s: int) -> None:
        super().__init__(None, "torch")
        self.limits = (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_CPU, cpu_s),
            (resource.RLIMIT_FSIZE, file_bytes),
        )

    def answer_other(
        self, run: server.RunOfRanks, question: dict[str, Any], fds: list[int]
    ) -> None:
        self.fork(run, "cells", fds)

    def become_other(self, run: server.RunOfRanks, name: str, fds: list[int]) -> None:
        from autograder.guest import kernel

        for kind, most in self.limits:
            resource.setrlimit(kind, (most, most))
        kernel.main(socket.socket(fileno=fds[0]))


def main(channel_fd: int, file_bytes: int, cpu_s: int) -> None:
    ctypes.CDLL(None).prctl(server.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    nothing = [os.open(os.devnull, os.O_RDONLY) for _ in ("store", "setup")]
    Keeper(file_bytes, cpu_s).serve_only(server.run_of([channel_fd, *nothing]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
