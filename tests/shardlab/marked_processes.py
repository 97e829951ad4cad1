"""Finds all descendants of the processes that a test started, even in other sessions.

They inherit a mark in their environment: the rank server, its ranks, and whatever ranks start.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil

NAME = "SHARDLAB_TEST_MARK"
HANG_LIMIT_S = 60


class MarkedProcesses:
    def __init__(self, folder: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.environment = {**os.environ, NAME: self.mark, "TMPDIR": str(self.temporary)}
        self.shared_memory = shared_memory()

    def alive(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(NAME) == self.mark:
                    found.append(process)
        return found

    def leftovers(self) -> list[str]:
        """Processes and files that should not exist; waits up to 10 s for them to disappear."""
        deadline = time.monotonic() + 10
        while (found := self._leftovers_now()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def _leftovers_now(self) -> list[str]:
        found = []
        for process in self.alive():
            with contextlib.suppress(psutil.Error):
                found.append(f"process {process.pid}: {' '.join(process.cmdline())}")
        files = (path for path in self.temporary.iterdir() if "torchinductor" not in path.name)
        found += [f"file {path}" for path in files]
        return found + [f"/dev/shm/{name}" for name in shared_memory() - self.shared_memory]

    def end(self) -> None:
        for process in self.alive():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def start(self, program: str) -> subprocess.Popen[str]:
        """Run this program in a new Python process; its output is in `stdout`."""
        path = self.temporary.parent / "program.py"
        path.write_text(program)
        return subprocess.Popen(
            [sys.executable, str(path)],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, program: str) -> list[str]:
        """The lines that the program printed; it must exit with code 0."""
        with self.start(program) as process:
            printed, _ = process.communicate(timeout=HANG_LIMIT_S)
        assert process.returncode == 0, printed
        return printed.splitlines()


def shared_memory() -> set[str]:
    """Names in /dev/shm, without those of browsers, servers and workers of other tests."""
    others = ("chromium", "sem.mp-", "PostgreSQL.")
    return {name for name in os.listdir("/dev/shm") if not any(map(name.__contains__, others))}


@contextlib.contextmanager
def marked_processes(folder: Path) -> Iterator[MarkedProcesses]:
    processes = MarkedProcesses(folder)
    try:
        yield processes
    finally:
        processes.end()
