"""Worker processes that grade: each holds one sandbox for its life, and may die at any moment.

    with LocalPool(jobs=2) as pool:
        for record in pool.grade_all(tasks):
            ...

``autograder.grading.pool.cluster`` has the same for workers on other machines.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

from autograder.grading.pool.worker import Refused, Worked, work
from autograder.grading.record.record import Record, Task, failed
from autograder.sandbox.bubblewrap import Unavailable
from autograder.sandbox.host import ForkServerProcess

log = logging.getLogger(__name__)

ATTEMPTS = 3  # the first, and two more where the machine failed
END_S = 10.0  # for a worker to end its sandbox
LOOK_S = 1.0  # between two looks at the workers while nothing is done

OnStart = Callable[[Task], None]


class Pool(Protocol):
    """Whoever grades tasks, here or elsewhere."""

    def grade_all(self, tasks: Iterable[Task], on_start: OnStart | None = None) -> Iterator[Record]:
        """A record for every task, in the order in which they are done; tasks are drawn as they
        are needed.

        A task whose worker failed or died ATTEMPTS times comes back as ``record.failed(task,
        why)``.  Raises Refused where no task can be graded at all: workers have no sandbox.
        """
        ...


class Try(NamedTuple):
    task: Task
    number: int = 1
    failed_at: frozenset[str] = frozenset()  # addresses of workers


@dataclass
class Round:
    """One call of ``grade_all``, wherever its workers are."""

    tasks: Iterator[Task]
    on_start: OnStart | None
    again: deque[Try] = field(default_factory=deque)
    # Of concurrent.futures, or Dask's.
    under_way: dict[Any, Try] = field(default_factory=dict)
    done: SimpleQueue[Any] = field(default_factory=SimpleQueue)

    def records(self) -> Iterator[Record]:
        try:
            while self._fill():
                record = self._next()
                if record is not None:
                    self._fill()  # workers go on while the caller keeps the record
                    yield record
        finally:
            self.cancel()

    def _fill(self) -> bool:
        """Gives every worker something to do; False where nothing is left."""
        while len(self.under_way) < self.room():
            if self.again:
                attempt = self.again.popleft()
            elif (task := next(self.tasks, None)) is not None:
                attempt = Try(task)
                if self.on_start:
                    self.on_start(task)
            else:
                break
            future = self.submit(attempt)
            self.under_way[future] = attempt
            future.add_done_callback(self.done.put)
        return bool(self.under_way)

    def _next(self) -> Record | None:
        """Waits a while; None where nothing was decided."""
        try:
            future = self.done.get(timeout=LOOK_S)
        except Empty:
            return None
        task, number, failed_at = self.under_way.pop(future)
        answer, worker = self.answer(future, task)
        if isinstance(answer, Record):
            return answer
        log.warning("%s, %s: %s", task.lab, task.student, answer)
        if number >= ATTEMPTS:
            return failed(task, answer)
        self.again.append(Try(task, number + 1, failed_at | {worker}))
        return None

    def room(self) -> int:
        """How many tasks may be under way. Asked again and again; raises Refused."""
        raise NotImplementedError

    def submit(self, attempt: Try) -> Any:
        raise NotImplementedError

    def answer(self, future: Any, task: Task) -> tuple[Record | str, str]:
        """(the record or why there is none, the worker that said so); raises Refused."""
        raise NotImplementedError

    def cancel(self) -> None:
        """What is under way is dropped, and the processes that grade it are ended."""
        raise NotImplementedError


class LocalPool:
    """``jobs`` processes on this machine. They die with this one, however it ends."""

    def __init__(self, jobs: int, unsandboxed: bool = False) -> None:
        if jobs < 1:
            raise ValueError(f"jobs is {jobs}: one worker at least has to grade")
        self._unsandboxed = unsandboxed
        self._fork_servers: dict[str, ForkServerProcess] = {}
        self._workers = [Worker(unsandboxed, self._fork_servers) for _ in range(jobs)]

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for worker in self._workers:
            worker.hang_up()
        for worker in self._workers:
            worker.join()
        while self._fork_servers:
            self._fork_servers.popitem()[1].close()

    def grade_all(self, tasks: Iterable[Task], on_start: OnStart | None = None) -> Iterator[Record]:
        """See Pool."""
        drawn = iter(tasks)
        if (first := next(drawn, None)) is None:
            return
        self._share_fork_server(first.engine)
        with ThreadPoolExecutor(len(self._workers)) as threads:
            yield from _LocalRound(
                itertools.chain([first], drawn),
                on_start,
                threads=threads,
                workers=self._workers,
                idle=[*self._workers],
            ).records()

    def _share_fork_server(self, engine: str) -> None:
        """It takes seconds to start and hundreds of MB: all workers make containers with one.

        In the thread that grades, since it ends with that.  Where it ends sooner, each worker
        starts its own.
        """
        if len(self._workers) > 1 and not self._unsandboxed and engine not in self._fork_servers:
            with contextlib.suppress(Unavailable):  # a worker will say so
                self._fork_servers[engine] = ForkServerProcess(engine)


@dataclass(kw_only=True)
class _LocalRound(Round):
    threads: ThreadPoolExecutor
    workers: Sequence[Worker]
    idle: list[Worker]

    def room(self) -> int:
        return len(self.workers)

    def submit(self, attempt: Try) -> Any:
        return self.threads.submit(self._ask, attempt.task)

    def _ask(self, task: Task) -> Record | str:
        worker = self.idle.pop()  # there are as many threads as workers
        try:
            return worker.ask(task)
        finally:
            self.idle.append(worker)

    def answer(self, future: Any, task: Task) -> tuple[Record | str, str]:
        return future.result(), ""

    def cancel(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)
        while wait(self.under_way, timeout=0.1).not_done:  # one may be starting a worker
            for worker in self.workers:
                worker.interrupt()


class Worker:
    """The parent's side of one worker process, started when it is needed."""

    def __init__(
        self, unsandboxed: bool, fork_servers: Mapping[str, ForkServerProcess] | None = None
    ) -> None:
        """``fork_servers``: those that are there when it starts are shared with it."""
        self._unsandboxed = unsandboxed
        self._fork_servers = {} if fork_servers is None else fork_servers
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None

    def ask(self, task: Task) -> Record | str:
        """The record, or why there is none; raises Refused."""
        if self._connection is not None and self._connection.poll():  # it only speaks when asked
            self.kill()  # it has ended: nobody needed it for a while, or somebody killed it
        connection = self._connection or self._start()
        try:
            connection.send(task)
            if not connection.poll(task.patience_s):
                self.kill()
                return f"it was not graded within {task.patience_s / 60:.0f} minutes"
            answer: Worked = connection.recv()
        except (EOFError, OSError):
            return f"its worker died ({self._how_it_ended()})"
        if isinstance(answer, Refused):
            raise answer
        return answer

    def _start(self) -> Connection:
        # Not fork: this process has threads. Not daemon: a worker has children of its own.
        spawning = multiprocessing.get_context("spawn")
        self._connection, theirs = spawning.Pipe()
        doors = {engine: fork_server.door for engine, fork_server in self._fork_servers.items()}
        self._process = spawning.Process(target=work, args=(theirs, self._unsandboxed, doors))
        self._process.start()
        theirs.close()  # else its death would not be heard of
        return self._connection

    def _how_it_ended(self) -> str:
        if self._process is None:
            return "it was stopped"
        self._process.join(END_S)
        code = self._process.exitcode
        self.kill()
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(-code).name}"
        return f"exit status {code}"

    def hang_up(self) -> None:
        """Nothing more is asked: it closes its sandbox and ends."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def join(self) -> None:
        if self._process is not None:
            self._process.join(END_S)
        self.kill()

    def interrupt(self) -> None:
        """From another thread than the one that asks: that one hears that its worker died."""
        process = self._process
        if process is not None and process.pid:
            # With the group, whose leader it is: what it started unsandboxed goes, too.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()

    def kill(self) -> None:
        self.interrupt()
        if self._process is not None:
            self._process.join()
            self._process = None
        self.hang_up()
