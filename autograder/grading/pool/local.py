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
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Protocol

from autograder.grading.pool.worker import Refused, Worked, work
from autograder.grading.record.record import Record, Task, failed

if TYPE_CHECKING:
    from autograder.sandbox.host import ForkServerProcess

log = logging.getLogger(__name__)

ATTEMPTS = 3  # the first, and two more where the machine failed
NO_FORK_SERVERS: Mapping[str, ForkServerProcess] = {}
END_S = 10.0  # for a worker to end its sandbox

OnStart = Callable[[Task], None]  # may be called in any thread


class Pool(Protocol):
    """Whoever grades tasks, here or elsewhere."""

    def grade_all(self, tasks: Iterable[Task], on_start: OnStart | None = None) -> Iterator[Record]:
        """A record for every task, in the order in which they are done.

        A task whose worker failed or died ATTEMPTS times comes back as ``record.failed(task,
        why)``.  Raises work.Refused where no task can be graded at all: workers have no sandbox.
        """
        ...


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
        """See Pool. Tasks are drawn as they are needed."""
        drawn = iter(tasks)
        if (first := next(drawn, None)) is None:
            return
        self._share_fork_server(first.engine)
        this_round = _LocalRound(itertools.chain([first], drawn), on_start)
        threads = [
            threading.Thread(target=this_round.serve, args=(worker,), daemon=True)
            for worker in self._workers
        ]
        for thread in threads:
            thread.start()
        left = len(threads)
        try:
            while left:
                result = this_round.results.get()
                if isinstance(result, Record):
                    yield result
                elif result is None:
                    left -= 1
                else:
                    raise result
        finally:
            this_round.over = True
            while any(thread.is_alive() for thread in threads):
                if left:  # interrupted, refused, or nobody wants the rest
                    for worker in self._workers:
                        worker.interrupt()
                for thread in threads:
                    thread.join(0.1)

    def _share_fork_server(self, engine: str) -> None:
        """It takes seconds to start and hundreds of MB: all workers make containers with one.

        In the thread that grades, since it ends with that.  Where it ends sooner, each worker
        starts its own.
        """
        if len(self._workers) > 1 and not self._unsandboxed and engine not in self._fork_servers:
            from autograder.sandbox.bubblewrap import Unavailable
            from autograder.sandbox.host import ForkServerProcess

            with contextlib.suppress(Unavailable):  # a worker will say so
                self._fork_servers[engine] = ForkServerProcess(engine)


@dataclass
class _LocalRound:
    """One call of ``grade_all``: a thread for each worker draws tasks until there are no more."""

    tasks: Iterator[Task]
    on_start: OnStart | None
    results: queue.SimpleQueue[Record | BaseException | None] = field(
        default_factory=queue.SimpleQueue
    )
    over: bool = False
    _drawing: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, worker: Worker) -> None:
        try:
            while not self.over and (task := self._draw()) is not None:
                if self.on_start:
                    self.on_start(task)
                self.results.put(self._grade(worker, task))
        except BaseException as error:
            self.results.put(error)
        finally:
            self.results.put(None)

    def _draw(self) -> Task | None:
        with self._drawing:
            return next(self.tasks, None)

    def _grade(self, worker: Worker, task: Task) -> Record:
        why = ""
        for _ in range(ATTEMPTS):
            if self.over:
                break
            answer = worker.ask(task)
            if isinstance(answer, Record):
                return answer
            why = answer
            log.info("%s, %s: %s", task.lab, task.student, why)
        return failed(task, why)


class Worker:
    """The parent's side of one worker process, started when it is needed."""

    def __init__(
        self, unsandboxed: bool, fork_servers: Mapping[str, ForkServerProcess] = NO_FORK_SERVERS
    ) -> None:
        """``fork servers``: those that are there when it starts are shared with it."""
        self._unsandboxed, self._fork_servers = unsandboxed, fork_servers
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
