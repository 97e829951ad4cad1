"""Worker processes that grade: each keeps one sandbox until it ends, and may die at any time.

    with LocalPool(jobs=2) as pool:
        for record in pool.grade_all(tasks):
            ...

``autograder.grading.pool.cluster`` does the same with workers on other machines.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

from autograder.grading.pool.worker import CannotGrade, Reply, work
from autograder.grading.record.record import Record, Task, failed
from autograder.sandbox.bubblewrap import Unavailable
from autograder.sandbox.host import ForkServerProcess

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3  # the first, and two retries if the machine failed
EXIT_S = 10.0  # for a worker to close its sandbox and exit
POLL_S = 1.0  # between two checks of the workers while none has finished

OnStart = Callable[[Task], None]


class Pool(Protocol):
    """Grades tasks, on this machine or on others."""

    def grade_all(
        self, tasks: Iterable[Task | None], on_start: OnStart | None = None
    ) -> Generator[Record, None, None]:
        """A record for every task, in the order in which they finish; takes tasks as workers
        become free. None: there is no task now, ask again; the call ends if none is in flight.

        A task whose worker failed or died MAX_ATTEMPTS times returns ``record.failed(task, why)``.
        Raises CannotGrade if no task can be graded at all: workers have no sandbox.
        """
        ...


class GradingAttempt(NamedTuple):
    task: Task
    number: int = 1
    failed_at: frozenset[str] = frozenset()  # addresses of workers


@dataclass
class Round:
    """One call of ``grade_all``, wherever its workers are."""

    tasks: Iterator[Task | None]
    on_start: OnStart | None
    retries: deque[GradingAttempt] = field(default_factory=deque)
    # By future, of concurrent.futures or Dask.
    in_flight: dict[Any, GradingAttempt] = field(default_factory=dict)
    done: SimpleQueue[Any] = field(default_factory=SimpleQueue)

    def records(self) -> Generator[Record, None, None]:
        try:
            while self._fill():
                record = self._next()
                if record is not None:
                    self._fill()  # keep the workers busy while the caller saves the record
                    yield record
        finally:
            self.cancel()

    def _fill(self) -> bool:
        """Give every worker a task; False if none is left or in flight."""
        while len(self.in_flight) < self.max_in_flight():
            if self.retries:
                attempt = self.retries.popleft()
            elif (task := next(self.tasks, None)) is not None:
                attempt = GradingAttempt(task)
                if self.on_start:
                    self.on_start(task)
            else:
                break
            future = self.submit(attempt)
            self.in_flight[future] = attempt
            future.add_done_callback(self.done.put)
        return bool(self.in_flight)

    def _next(self) -> Record | None:
        """Wait up to POLL_S; None if no submission was graded."""
        try:
            future = self.done.get(timeout=POLL_S)
        except Empty:
            return None
        task, number, failed_at = self.in_flight.pop(future)
        result, worker = self.result_of(future, task)
        if isinstance(result, Record):
            return result
        log.warning("%s, %s: %s", task.lab, task.student, result)
        if number >= MAX_ATTEMPTS:
            return failed(task, result)
        self.retries.append(GradingAttempt(task, number + 1, failed_at | {worker}))
        return None

    def max_in_flight(self) -> int:
        """How many tasks may be in flight now; called repeatedly. Raises CannotGrade."""
        raise NotImplementedError

    def submit(self, attempt: GradingAttempt) -> Any:
        raise NotImplementedError

    def result_of(self, future: Any, task: Task) -> tuple[Record | str, str]:
        """(the record or why there is none, the worker's address); raises CannotGrade."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Drop the tasks in flight and kill the processes that grade them."""
        raise NotImplementedError


class LocalPool:
    """``jobs`` processes on this machine. They end with this one, however it ends."""

    def __init__(self, jobs: int, unsandboxed: bool = False) -> None:
        if jobs < 1:
            raise ValueError(f"jobs is {jobs}: at least one worker is needed")
        self._unsandboxed = unsandboxed
        self._fork_servers: dict[str, ForkServerProcess] = {}
        self._workers = [Worker(unsandboxed, self._fork_servers) for _ in range(jobs)]

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._end_workers()
        while self._fork_servers:
            self._fork_servers.popitem()[1].close()

    def _end_workers(self) -> None:
        for worker in self._workers:
            worker.disconnect()
        for worker in self._workers:
            worker.join()

    def grade_all(
        self, tasks: Iterable[Task | None], on_start: OnStart | None = None
    ) -> Generator[Record, None, None]:
        """See Pool."""
        remaining = iter(tasks)
        if (first := next(remaining, None)) is None:
            return
        self._share_fork_server(first.engine)
        with ThreadPoolExecutor(len(self._workers)) as threads:
            yield from _LocalRound(
                itertools.chain([first], remaining),
                on_start,
                threads=threads,
                workers=self._workers,
                idle=[*self._workers],
            ).records()

    def _share_fork_server(self, engine: str) -> None:
        """A fork server takes seconds to start and hundreds of MB, so all workers share one.

        Started in the thread that grades, because it ends with that thread.  If it ends earlier,
        each worker starts its own.
        """
        if len(self._workers) > 1 and not self._unsandboxed and engine not in self._fork_servers:
            with contextlib.suppress(Unavailable):  # a worker will report it
                self._fork_servers[engine] = ForkServerProcess(engine)
                self._end_workers()  # those of an earlier lab do not know it; new ones will


@dataclass(kw_only=True)
class _LocalRound(Round):
    threads: ThreadPoolExecutor
    workers: Sequence[Worker]
    idle: list[Worker]

    def max_in_flight(self) -> int:
        return len(self.workers)

    def submit(self, attempt: GradingAttempt) -> Any:
        return self.threads.submit(self._ask, attempt.task)

    def _ask(self, task: Task) -> Record | str:
        worker = self.idle.pop()  # there are as many threads as workers
        try:
            return worker.ask(task)
        finally:
            self.idle.append(worker)

    def result_of(self, future: Any, task: Task) -> tuple[Record | str, str]:
        return future.result(), ""

    def cancel(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)
        while wait(self.in_flight, timeout=0.1).not_done:  # one may be starting a worker
            for worker in self.workers:
                worker.interrupt()


class Worker:
    """The parent's side of one worker process, which is started on demand."""

    def __init__(
        self, unsandboxed: bool, fork_servers: Mapping[str, ForkServerProcess] | None = None
    ) -> None:
        """``fork_servers``: shared with the worker if they exist when it starts."""
        self._unsandboxed = unsandboxed
        self._fork_servers = {} if fork_servers is None else fork_servers
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None

    def ask(self, task: Task) -> Record | str:
        """The record, or why there is none; raises CannotGrade."""
        # No reply is due, so the worker has ended: it was idle for too long, or was killed.
        if self._connection is not None and self._connection.poll():
            self.kill()
        connection = self._connection or self._start()
        try:
            connection.send(task)
            if not connection.poll(task.timeout_s):
                self.kill()
                return f"it was not graded within {task.timeout_s / 60:.0f} minutes"
            reply: Reply = connection.recv()
        except (EOFError, OSError):
            return f"its worker died ({self._how_it_ended()})"
        if isinstance(reply, CannotGrade):
            raise reply
        return reply

    def _start(self) -> Connection:
        # Not fork: this process has threads. Not daemon: a worker has children.
        spawning = multiprocessing.get_context("spawn")
        self._connection, child_end = spawning.Pipe()
        shared = {engine: server.request_socket for engine, server in self._fork_servers.items()}
        self._process = spawning.Process(target=work, args=(child_end, self._unsandboxed, shared))
        self._process.start()
        child_end.close()  # otherwise recv() would not fail when the worker dies
        return self._connection

    def _how_it_ended(self) -> str:
        if self._process is None:
            return "it was stopped"
        self._process.join(EXIT_S)
        code = self._process.exitcode
        self.kill()
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(-code).name}"
        return f"exit status {code}"

    def disconnect(self) -> None:
        """Send no more tasks: the worker closes its sandbox and exits."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def join(self) -> None:
        if self._process is not None:
            self._process.join(EXIT_S)
        self.kill()

    def interrupt(self) -> None:
        """Kill the worker from another thread; the thread in ``ask`` then sees that it died."""
        process = self._process
        if process is not None and process.pid:
            # The process group that it leads, too: whatever it started unsandboxed.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()

    def kill(self) -> None:
        self.interrupt()
        if self._process is not None:
            self._process.join()
            self._process = None
        self.disconnect()
