"""Runs a command and measures the resources that it and all its descendant processes use."""

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

SAMPLE_S = 1.0  # between two memory samples
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>
ORPHANS_S = 5.0  # how long orphans may take to exit by themselves


@dataclass(frozen=True)
class Usage:
    exit_status: int
    wall_s: float
    cpu_s: float  # user + system
    peak_bytes: int  # of memory, shared pages counted once
    survivors: int  # processes still running after the command exited
    output: str


def run(
    command: list[str],
    cwd: Path,
    environment: dict[str, str],
    on_line: Callable[[str], None] = lambda line: None,
) -> Usage:
    """``on_line`` is called with each line of stdout and stderr as it is printed.

    Run only one command at a time: CPU time includes all terminated children of this process.
    """
    # Makes this process adopt orphans, so that their CPU time is counted too.
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    before_s = children_cpu_s()
    start_s = time.perf_counter()
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
    memory = MemorySampler()
    memory.start()
    lines: list[str] = []

    def read_output() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            on_line(line)

    reader = threading.Thread(target=read_output, daemon=True)
    reader.start()
    status = process.wait()
    wall_s = time.perf_counter() - start_s
    memory.stop()
    survivors = end_orphans()
    reader.join()  # only now, because orphans may keep the pipe open
    cpu_s = children_cpu_s() - before_s
    return Usage(status, wall_s, cpu_s, memory.peak_bytes, survivors, "".join(lines))


def children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class MemorySampler(threading.Thread):
    """Samples the memory of all descendants of this process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(SAMPLE_S):
            used_bytes = sum(pss_bytes(process) for process in descendants())
            self.peak_bytes = max(self.peak_bytes, used_bytes)

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def pss_bytes(process: psutil.Process) -> int:
    """Proportional set size: private pages plus a share of shared ones; 0 if it has exited."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def end_orphans() -> int:
    """Kill what the command left running and does not exit in time; returns how many processes."""
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
    """Without the user's Jupyter settings, and with the venv on the PATH, as nbgrader needs."""
    kept = {name: value for name, value in os.environ.items() if "JUPYTER" not in name}
    path = os.pathsep.join([os.path.dirname(sys.executable), kept.get("PATH", "")])
    return {**kept, "HOME": str(home), "PATH": path}
