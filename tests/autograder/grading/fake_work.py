"""What a worker process may do, without grading: told by the bytes that were handed in."""

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
    from autograder.sandbox.host import Doors


def task(student: str, wish: str = "", patience_s: float = 300) -> Task:
    """``wish``: see ``grade``; a path behind it is where pids are written."""
    return Task(
        "03_ring", student, wish.encode(), "", {}, seed=1, limits={}, code="", patience_s=patience_s
    )


def fake_work(connection: Connection, unsandboxed: bool, doors: Doors) -> None:
    """In the place of ``work.work``, in a process of its own."""
    work.Grader.grade = grade  # type: ignore[method-assign,assignment]
    work.work(connection, unsandboxed, doors)


def grade(self: work.Grader, task: Task) -> work.Worked:
    wish, _, path = (task.submitted or b"").decode().partition(" ")
    first = path and not Path(path).exists()
    if path:
        with Path(path).open("a") as file:
            file.write(f"{os.getpid()}\n")
    if wish == "die" or (wish == "die_once" and first):
        os.kill(os.getpid(), signal.SIGKILL)
    if wish == "fail" or (wish == "fail_once" and first):
        return "no memory for ranks"
    if wish == "refuse":
        return work.Refused("this machine has no sandbox: install bubblewrap")
    if wish == "hang":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        time.sleep(600)
    return Record(task.lab, task.student, task.key, task.submission_hash, GRADED, reason="")
