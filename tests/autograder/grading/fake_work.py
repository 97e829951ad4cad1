"""A fake worker process: the submitted bytes say how it behaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from autograder.grading.pool import worker as work
from autograder.grading.record.record import GRADED, Record, Task

if TYPE_CHECKING:
    from autograder.sandbox.host import RequestSockets


def task(student: str, behavior: str = "", timeout_s: float = 300, code: str = "") -> Task:
    """``behavior``: see ``grade``; a path after it receives pids. ``code``: a cell of the lab."""
    return Task(
        "03_ring",
        student,
        behavior.encode(),
        "",
        {"cells": [{"cell_type": "code", "source": code}]},
        seed=1,
        limits={},
        code="",
        timeout_s=timeout_s,
    )


def fake_work(connection: Connection, unsandboxed: bool, fork_servers: RequestSockets) -> None:
    """Replaces ``work.work``, in a separate process."""
    work.Grader.grade = grade  # type: ignore[method-assign,assignment]
    work.work(connection, unsandboxed, fork_servers)


def grade(self: work.Grader, task: Task) -> work.Reply:
    behavior, _, path = (task.submitted or b"").decode().partition(" ")
    first = path and not Path(path).exists()
    if path:
        with Path(path).open("a") as file:
            file.write(f"{os.getpid()}\n")
    if behavior == "die" or (behavior == "die_once" and first):
        os.kill(os.getpid(), signal.SIGKILL)
    if behavior == "fail" or (behavior == "fail_once" and first):
        return "no memory for ranks"
    if behavior == "refuse":
        return work.CannotGrade("this machine has no sandbox: install bubblewrap")
    if behavior == "hang":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        time.sleep(600)
    reason = " ".join(self._fork_servers) if behavior == "fork_servers" else ""
    return Record(task.lab, task.student, task.key, task.submission_hash, GRADED, reason)
