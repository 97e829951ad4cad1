"""Stand-ins for ``cluster.grade_here`` on Dask workers: what can happen there, without grading."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from autograder.grading.pool.cluster import from_text
from autograder.grading.record.record import GRADED, Record, Task


def quick(text: str, round_name: str, unsandboxed: bool) -> str:
    return answer(from_text(text))


def deadly(text: str, round_name: str, unsandboxed: bool) -> str:
    """Kills its worker, every time."""
    task = from_text(text)
    if task.student == "bomb":
        os.kill(os.getpid(), signal.SIGKILL)
    return answer(task)


def unlucky(text: str, round_name: str, unsandboxed: bool) -> str:
    """Fails and says so; where a file was named, only until that file is there."""
    task = from_text(text)
    cure = Path(task.unreadable)
    if task.student == "unlucky" and not (task.unreadable and cure.exists()):
        if task.unreadable:
            cure.touch()
        return json.dumps({"failed": "the disk is full", "worker": "somewhere"})
    return answer(task)


def confused(text: str, round_name: str, unsandboxed: bool) -> str:
    """Sends what is no record, and another student's."""
    task = from_text(text)
    if task.student == "garbled":
        return json.dumps({"record": '{"lab": 3}', "worker": "somewhere"})
    other = Task(**{**vars(task), "student": "somebody else"})
    return answer(other)


def endless(text: str, round_name: str, unsandboxed: bool) -> str:
    """Until the file that ``unreadable`` names is there."""
    task = from_text(text)
    while not Path(task.unreadable).exists():
        time.sleep(0.05)
    return answer(task)


def answer(task: Task) -> str:
    record = Record(task.lab, task.student, task.key, task.submission_hash, GRADED, reason="")
    return json.dumps({"record": record.to_json(), "worker": "somewhere"})
