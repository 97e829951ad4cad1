"""Grading without running anything: a comment in an answer sets its points, "# worth 1.5".

Run as a script, it is `python -m autograder` with such fake workers:

    python fake_class.py grade 03_ring_all_reduce --jobs 2
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
from nbformat.v4 import new_output

from autograder.build.cells import checks_of, grade_id
from autograder.grading.pool import local
from autograder.grading.pool import worker as work
from autograder.grading.pool.local import OnStart
from autograder.grading.record.record import GRADED, UNREADABLE, Record, Task, failed
from autograder.grading.submission.reader import read_notebook
from autograder.grading.submission.rebuild import rebuild

if TYPE_CHECKING:
    from autograder.sandbox.host import RequestSockets

WORTH = re.compile(r"# worth ([\d.]+)")


def decide(task: Task, bonus: float = 0.0) -> Record:
    """All of a notebook's points go to the check of ``chunk_bounds``."""
    template = nbformat.from_dict(task.template)
    notebook, notes = template, [task.unreadable]
    if task.submitted is not None:
        notebook, notes = rebuild(template, read_notebook(task.submitted)[0])
    points = dict.fromkeys(checks_of(template), 0.0)
    for cell in notebook.cells:
        found = WORTH.search(cell.source)
        if found and grade_id(cell) == "chunk_bounds":
            points["check_chunk_bounds"] = min(float(found[1]) + bonus, 2.0)
    for cell in notebook.cells:
        earned = points.get(grade_id(cell) or "")
        if earned is not None:
            cell.outputs = [new_output("execute_result", data={"text/plain": repr(earned)})]
    state = GRADED if task.submitted is not None else UNREADABLE
    return Record(
        task.lab, task.student, task.key, task.submission_hash, state, task.unreadable,
        notes=tuple(notes), notebook=dict(notebook), points=points, timing={"ran_s": 1.0},
    )  # fmt: skip


class FakePool:
    """A local.Pool in this process that records whom it graded."""

    def __init__(self) -> None:
        self.graded: list[str] = []
        self.bonus = 0.0
        self.failures: dict[str, str] = {}  # {student: why the machine fails}

    def __enter__(self) -> FakePool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def grade_all(
        self, tasks: Iterable[Task | None], on_start: OnStart | None = None
    ) -> Iterator[Record]:
        for task in tasks:
            if task is None:
                return
            if on_start:
                on_start(task)
            self.graded.append(task.student)
            why = self.failures.get(task.student)
            yield failed(task, why) if why else decide(task, self.bonus)


def fake_work(connection: Connection, unsandboxed: bool, fork_servers: RequestSockets) -> None:
    work.Grader.grade = grade_slowly  # type: ignore[method-assign,assignment]
    work.work(connection, unsandboxed, fork_servers)


def grade_slowly(self: work.Grader, task: Task) -> Record:
    """Records who is graded; if the student is in SLOW, waits until the file GATE exists."""
    with Path(os.environ["GRADED"]).open("a") as file:
        file.write(f"{task.student}\n")
    gate = Path(os.environ["GATE"])
    while task.student in os.environ["SLOW"] and not gate.exists():
        time.sleep(0.05)
    return decide(task)


if __name__ == "__main__":
    from autograder.__main__ import main

    local.work = fake_work
    sys.exit(main(sys.argv[1:]))
