"""A notebook's cells without walls: only for tests, and where --unsandboxed was typed.

Between the grader and the cells stands a process that does nothing but adopt what they leave
behind and end it: ``python -P -m autograder.sandbox.plain_kernel SOCKET CONTROL``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn

import psutil

from autograder.sandbox.contained import ContainedCells, Ending
from autograder.sandbox.limits import Limits

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
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
        self.control, their_control = socket.socketpair()
        fds = (theirs.fileno(), their_control.fileno())
        numbers = (int(limits.file_bytes), int(limits.cpu_s))
        paths = [str(_ROOT), str(_ROOT / "course"), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONHASHSEED": "0",  # the same order of sets each time
            "OMP_NUM_THREADS": "1",
        }
        with theirs, their_control:
            self.keeper = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, *map(str, fds), *map(str, numbers)],
                pass_fds=fds,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.pid: int = json.loads(self.control.recv(100) or "0")
        self.ending: Ending | None = None

    def interrupt(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        if self.keeper.returncode is not None:
            return
        self.control.shutdown(socket.SHUT_WR)
        self.why_ended()
        self.control.close()
        try:
            self.keeper.wait(10)
        except subprocess.TimeoutExpired:  # stopped, by what it keeps
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.keeper.pid, signal.SIGKILL)
            self.keeper.wait()

    def why_ended(self) -> Ending:
        if self.ending is None:
            self.control.settimeout(10)
            try:
                self.ending = Ending.by(json.loads(self.control.recv(100)))
            except (OSError, ValueError):
                return Ending.by(None)
        return self.ending

    def cpu_s(self) -> float:
        used_s = 0.0
        with contextlib.suppress(psutil.Error):
            keeper = psutil.Process(self.keeper.pid)
            for process in (keeper, *keeper.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    used_s += sum(process.cpu_times()[:4])  # with those of its dead children
        return used_s


def _keep(cells_fd: int, control_fd: int, file_bytes: int, cpu_s: int) -> NoReturn:
    """Start the cells, tell how they end, and end all that descends from them."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    control = socket.socket(fileno=control_fd)
    pid = os.fork()
    if pid == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        control.close()
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
        from autograder.guest import kernel as cells

        cells.main(socket.socket(fileno=cells_fd))
    os.close(cells_fd)
    control.sendall(json.dumps(pid).encode())
    death = os.pidfd_open(pid)
    ready, _, _ = select.select([control_fd, death], [], [])
    if control_fd not in ready:
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            control.sendall(json.dumps(os.waitstatus_to_exitcode(status)).encode())
        control.recv(1)
    with contextlib.suppress(ChildProcessError):
        while True:
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
            time.sleep(0.005)
    os._exit(0)


if __name__ == "__main__":
    _keep(*map(int, sys.argv[1:]))
