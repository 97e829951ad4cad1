"""Runs a command and adds up what it and every process below it used, however they end."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

SAMPLE_S = 1.0  # between two looks at the memory
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>
ORPHANS_S = 5.0  # what is left behind has so long to end by itself


@dataclass(frozen=True)
class Usage:
    exit_status: int
    wall_s: float
    cpu_s: float  # user + system
    peak_bytes: int  # of memory, shared pages counted once
    survivors: int  # processes still there when the command had ended
    output: str


def run(
    command: list[str],
    cwd: Path,
    environment: dict[str, str],
    on_line: Callable[[str], None] = lambda line: None,
) -> Usage:
    """``on_line`` gets each line of stdout and stderr as it comes.

    Only one at a time: CPU time is that of all children of this process that have ended.
    """
    # Orphans come to us instead of to init, so that their time is counted too.
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    before_s = children_cpu_s()
    begun_s = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    memory = Memory()
    memory.start()
    lines: list[str] = []

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            on_line(line)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    status = process.wait()
    wall_s = time.perf_counter() - begun_s
    memory.stop()
    survivors = end_orphans()
    listener.join()  # only now: what was left behind may have held the pipe open
    cpu_s = children_cpu_s() - before_s
    return Usage(status, wall_s, cpu_s, memory.peak_bytes, survivors, "".join(lines))


def children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Memory(threading.Thread):
    """Watches the memory of everything below this process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            held = sum(held_bytes(process) for process in descendants())
            self.peak_bytes = max(self.peak_bytes, held)

    def stop(self) -> None:
        self._over.set()
        self.join()


def descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def held_bytes(process: psutil.Process) -> int:
    """Its own pages and its share of those it has in common with others; 0 once it is gone."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def end_orphans() -> int:
    """How many processes the command left behind, after a moment to end; they are ended here."""
    deadline_s = time.monotonic() + ORPHANS_S
    while (left := alive()) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    for process in left:
        process.send_signal(signal.SIGKILL)
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return len(left)


def alive() -> list[psutil.Process]:
    return [p for p in descendants() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def clean_environment(home: Path) -> dict[str, str]:
    """Nothing of the user's own Jupyter; the venv's commands are found, as nbgrader needs."""
    kept = {name: value for name, value in os.environ.items() if "JUPYTER" not in name}
    path = os.pathsep.join([os.path.dirname(sys.executable), kept.get("PATH", "")])
    return {**kept, "HOME": str(home), "PATH": path}
