"""A worker process: grades one task after another in one sandbox."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import threading
from contextlib import ExitStack
from multiprocessing.connection import Connection

from autograder.grading.course_error import CourseError
from autograder.grading.record.record import Record, Task
from autograder.sandbox import limits_of, open_sandbox
from autograder.sandbox.bubblewrap import Unavailable
from autograder.sandbox.host import RequestSockets

IDLE_S = 300.0  # after this idle time a worker exits


class CannotGrade(Exception):
    """No submission can be graded on this machine: why, and what to do."""


Reply = Record | str | CannotGrade  # str: why the machine failed to grade this submission


def work(connection: Connection, unsandboxed: bool, fork_servers: RequestSockets) -> None:
    """Grade tasks as they arrive. ``fork_servers``: request sockets of those that workers share."""
    _end_with_parent()
    with (
        contextlib.closing(connection),
        Grader(unsandboxed, fork_servers) as grader,
        contextlib.suppress(EOFError, OSError),  # the parent disconnected
    ):
        while connection.poll(IDLE_S):
            connection.send(grader.grade(connection.recv()))


class Grader(ExitStack):
    """One process's sandbox, opened at the first task and again after a failure."""

    def __init__(self, unsandboxed: bool, fork_servers: RequestSockets) -> None:
        super().__init__()
        self._unsandboxed, self._fork_servers = unsandboxed, fork_servers
        self._opened_for: object = None
        self._has_frozen = False

    def grade(self, task: Task) -> Reply:
        # Imported here: the workers' parent does not need torch.
        from autograder.grading.record.grade_submission import grade_submission

        if not self._has_frozen:
            gc.freeze()  # or each full collection would look at all that torch has imported
            self._has_frozen = True
        try:
            return grade_submission(task, self._open(task))
        except (Unavailable, CourseError) as error:
            return CannotGrade(str(error))
        except Exception as error:
            self._opened_for = None
            with contextlib.suppress(Exception):
                self.close()
            return f"{type(error).__name__}: {error}"

    def _open(self, task: Task) -> object:
        wanted = limits_of(task.lab, task.limits), task.engine
        if self._opened_for != wanted:
            self.close()
            opened = open_sandbox(wanted[0], self._unsandboxed, task.engine, self._fork_servers)
            self._sandbox: object = self.enter_context(opened)
            self._opened_for = wanted
        return self._sandbox


def _end_with_parent() -> None:
    """When the parent ends, however that happens, kill this process and its group.

    It gets a separate group so that only the parent receives an interrupt from the keyboard.
    """
    os.setpgid(0, 0)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()
