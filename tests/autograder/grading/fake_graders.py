"""Fakes of ``cluster.grade_on_worker``: what can happen on Dask workers, without grading."""

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


def kills_its_worker(text: str, round_name: str, unsandboxed: bool) -> str:
    """Kills its worker, every time."""
    task = from_text(text)
    if task.student == "bomb":
        os.kill(os.getpid(), signal.SIGKILL)
    return answer(task)


def fails(text: str, round_name: str, unsandboxed: bool) -> str:
    """Reports a failure; if ``unreadable`` names a file, only until that file exists."""
    task = from_text(text)
    fixed = Path(task.unreadable)
    if task.student == "unlucky" and not (task.unreadable and fixed.exists()):
        if task.unreadable:
            fixed.touch()
        return json.dumps({"failed": "the disk is full", "worker": "somewhere"})
    return answer(task)


def answers_wrongly(text: str, round_name: str, unsandboxed: bool) -> str:
    """Sends an invalid record, and another student's."""
    task = from_text(text)
    if task.student == "garbled":
        return json.dumps({"record": '{"lab": 3}', "worker": "somewhere"})
    other = Task(**{**vars(task), "student": "somebody else"})
    return answer(other)


def waits_for_file(text: str, round_name: str, unsandboxed: bool) -> str:
    """Grades once the file that ``unreadable`` names exists."""
    task = from_text(text)
    while not Path(task.unreadable).exists():
        time.sleep(0.05)
    return answer(task)


def answer(task: Task) -> str:
    record = Record(task.lab, task.student, task.key, task.submission_hash, GRADED, reason="")
    return json.dumps({"record": record.to_json(), "worker": "somewhere"})
