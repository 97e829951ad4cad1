"""Grading on other machines: any Dask scheduler by its address, however its workers were started.

    with ClusterPool("tcp://head:8786") as pool:
        for record in pool.grade_all(tasks):
            ...

What travels is text, a task there and a record back. Dask pickles that text and the names of two
functions of this file; nothing that a student made is ever unpickled. Each thread of a Dask worker
has a process of its own that grades, the same as ``engine`` starts on one machine, with one sandbox
for its life: what student code does to that process does not reach Dask.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import multiprocessing
import multiprocessing.util
import os
import platform
import socket
import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from autograder.grading.pool.local import ATTEMPTS, OnStart, Worker
from autograder.grading.pool.worker import Refused
from autograder.grading.record.record import BrokenRecord, Record, Task, failed
from autograder.grading.record.version import code_version

if TYPE_CHECKING:
    from distributed import Client, Future

log = logging.getLogger(__name__)

CONNECT_S = 10.0
FIRST_WORKER_S = 60.0  # for the first worker to join
ALONE_S = 300.0  # without any worker, until the run is given up
LOOK_S = 1.0  # between two looks at the cluster while nothing is done


class ClusterPool:
    """An engine.Pool whose workers are those of a Dask scheduler.

    A submission whose Dask worker dies is run again by Dask itself, up to the scheduler's
    ``allowed-failures`` (3 unless it was told otherwise); one whose grading fails is tried again,
    on another worker where there is one.
    """

    def __init__(self, address: str, unsandboxed: bool = False) -> None:
        self._address = address
        self._unsandboxed = unsandboxed
        self._client: Client | None = None

    def __enter__(self) -> ClusterPool:
        """Raises Refused where nobody answers, or a worker has other code than this machine."""
        self._client = _connect(self._address)
        try:
            _require_workers(self._client, self._address)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def grade_all(self, tasks: Iterable[Task], on_start: OnStart | None = None) -> Iterator[Record]:
        """See Pool. As many tasks are under way as the workers have threads: none waits at a
        worker, to be held against it should that one die."""
        assert self._client is not None, "used outside of its with block"
        this_round = _ClusterRound(
            self._client, self._address, self._unsandboxed, iter(tasks), on_start
        )
        try:
            while this_round.fill():
                record = this_round.next()
                if record is not None:
                    this_round.fill()  # workers go on while the caller keeps the record
                    yield record
        finally:
            this_round.cancel()


@dataclass
class _Try:
    task: Task
    number: int = 1
    failed_at: set[str] = field(default_factory=set)  # addresses of workers


@dataclass
class _ClusterRound:
    """One call of ``grade_all``."""

    client: Client
    address: str
    unsandboxed: bool
    tasks: Iterator[Task]
    on_start: OnStart | None
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    again: deque[_Try] = field(default_factory=deque)
    under_way: dict[Future, _Try] = field(default_factory=dict)
    done: SimpleQueue[Future] = field(default_factory=SimpleQueue)
    saw_worker_s: float = field(default_factory=time.monotonic)

    def fill(self) -> bool:
        """Gives every thread of the cluster something to do; False where nothing is left."""
        while len(self.under_way) < max(1, self._threads()):
            if self.again:
                attempt = self.again.popleft()
            elif (task := next(self.tasks, None)) is not None:
                attempt = _Try(task)
                if self.on_start:
                    self.on_start(task)
            else:
                break
            self._submit(attempt)
        return bool(self.under_way)

    def _submit(self, attempt: _Try) -> None:
        task = attempt.task
        others = sorted(set(self.client.nthreads()) - attempt.failed_at)
        future = self.client.submit(
            grade_here,
            to_text(task),
            self.name,
            self.unsandboxed,
            key=f"{task.lab}-{task.student}-{attempt.number}-{self.name}",
            # A preference: nobody waits for a worker that has gone.
            workers=others if attempt.failed_at and others else None,
            allow_other_workers=bool(attempt.failed_at and others),
            pure=False,
        )
        self.under_way[future] = attempt
        future.add_done_callback(self.done.put)

    def next(self) -> Record | None:
        """Waits a while; None where nothing was decided. Raises Refused."""
        try:
            future = self.done.get(timeout=LOOK_S)
        except Empty:
            self._look()
            return None
        attempt = self.under_way.pop(future)
        answer, worker, last = self._answer(future, attempt.task)
        future.release()
        if isinstance(answer, Record):
            return answer
        log.warning("%s, %s: %s", attempt.task.lab, attempt.task.student, answer)
        if last or attempt.number >= ATTEMPTS:
            return failed(attempt.task, answer)
        self.again.append(_Try(attempt.task, attempt.number + 1, attempt.failed_at | {worker}))
        return None

    def _answer(self, future: Future, task: Task) -> tuple[Record | str, str, bool]:
        """(the record or why there is none, the worker that said so, whether that is final)."""
        from concurrent.futures import CancelledError

        from distributed import KilledWorker
        from distributed.client import FutureCancelledError

        try:
            answer = json.loads(future.result())
            worker = str(answer["worker"])
            if "failed" in answer:
                return str(answer["failed"]), worker, False
            record = Record.from_json(answer["record"])
        except KilledWorker as error:
            return f"{error.allowed_failures + 1} workers died while grading it", "", True
        except (FutureCancelledError, CancelledError) as error:
            raise self._gone() from error
        except BrokenRecord as error:
            return f"what came from {worker} is {error}", worker, False
        except Exception as error:  # of a worker that cannot even load this file, say
            return f"{type(error).__name__}: {error}", "", False
        if (record.lab, record.student, record.key) != (task.lab, task.student, task.key):
            return f"{worker} answered for another submission", worker, False
        return record, worker, True

    def _threads(self) -> int:
        try:
            threads = sum(self.client.nthreads().values())
        except Exception as error:  # the connection broke
            raise self._gone() from error
        if threads:
            self.saw_worker_s = time.monotonic()
        return threads

    def _look(self) -> None:
        if not self._threads() and time.monotonic() - self.saw_worker_s > ALONE_S:
            raise Refused(
                f"{self.address} has been without workers for {ALONE_S:.0f} s: every grade that "
                f"was reported is kept. Start workers ({_how(self.address)}), then the same "
                "command again."
            )

    def _gone(self) -> Refused:
        return Refused(
            f"the scheduler at {self.address} is gone: every grade that was reported is kept. "
            "Start it and its workers, then the same command again."
        )

    def cancel(self) -> None:
        """What is under way is dropped, and the processes that grade it are ended."""
        if not self.under_way or self.client.status != "running":
            return
        with contextlib.suppress(Exception):
            self.client.cancel(list(self.under_way), force=True)
            self.client.run(stop_here, self.name, on_error="ignore")


# ---- on the machine of whoever starts the grading


def _connect(address: str) -> Client:
    try:
        from distributed import Client
        from distributed.comm.addressing import parse_address, parse_host_port
    except ImportError as error:
        raise Refused("grading on a cluster needs Dask: run `make env`") from error
    if "://" not in address:
        address = f"tcp://{address}"
    try:
        # Dask would try again and again where nobody listens.
        host_and_port = parse_host_port(parse_address(address)[1], default_port=8786)
        socket.create_connection(host_and_port, CONNECT_S).close()
        return Client(address, timeout=CONNECT_S, set_as_default=False, name="shardlab")
    except (OSError, ValueError, TimeoutError) as error:
        raise Refused(
            f"no Dask scheduler answers at {address} ({_innermost(error)}): start one with "
            "`dask scheduler`, which prints its address, or grade on this machine by leaving out "
            "--scheduler."
        ) from error


def _require_workers(client: Client, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=FIRST_WORKER_S)
    except TimeoutError as error:
        raise Refused(
            f"the scheduler at {address} has had no worker for {FIRST_WORKER_S:.0f} s: start some "
            f"({_how(address)})."
        ) from error
    wrong = []
    for worker, found in client.run(version_here, on_error="return").items():
        if isinstance(found, BaseException):
            wrong.append(f"{worker} cannot load the autograder ({_innermost(found)})")
        elif found != code_version():
            wrong.append(f"{worker} has version {found}")
    if wrong:
        raise Refused(
            f"nothing was graded: this machine has version {code_version()} of the course, and\n  "
            + "\n  ".join(sorted(wrong))
            + "\nBring all machines to the same commit and the same requirements.lock, and start "
            "their workers again."
        )


def _how(address: str) -> str:
    return f"`.venv/bin/dask worker {address}` in this repository, on each machine"


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def to_text(task: Task) -> str:
    content = task.submitted
    encoded = None if content is None else base64.b64encode(content).decode()
    return json.dumps({**asdict(task), "submitted": encoded})


def from_text(text: str) -> Task:
    plain: dict[str, Any] = json.loads(text)
    encoded = plain["submitted"]
    submitted = None if encoded is None else base64.b64decode(encoded)
    return Task(**{**plain, "submitted": submitted, "notes": tuple(plain["notes"])})


# ---- on the workers' machines

_lock = threading.Lock()
_idle: dict[bool, list[Worker]] = defaultdict(list)  # {unsandboxed: ...}
_busy: dict[str, set[Worker]] = defaultdict(set)  # {round: ...}


def _close() -> None:
    for workers in _idle.values():
        for worker in workers:
            worker.hang_up()


# Before this process waits for those that it started, which would wait for a task meanwhile.
multiprocessing.util.Finalize(None, _close, exitpriority=10)


def version_here() -> str:
    """Of the files as they are now: a worker process started next would run those."""
    code_version.cache_clear()
    return code_version()


def grade_here(text: str, round_name: str, unsandboxed: bool) -> str:
    """A record, or why there is none, as JSON. Any number of threads may do so at once."""
    task = from_text(text)
    answer: Record | str
    if task.code != version_here():  # of a worker that joined late, or was changed meanwhile
        answer = f"{platform.node()} has version {code_version()} of the course, not {task.code}"
    else:
        answer = _graded(task, round_name, unsandboxed)
    said = {"record": answer.to_json()} if isinstance(answer, Record) else {"failed": answer}
    return json.dumps({**said, "worker": _address()})


def _graded(task: Task, round_name: str, unsandboxed: bool) -> Record | str:
    # Dask's nanny marks its worker as a process without children; those here end with it.
    multiprocessing.current_process().daemon = False
    with _lock:
        worker = _idle[unsandboxed].pop() if _idle[unsandboxed] else Worker(unsandboxed)
        _busy[round_name].add(worker)
    try:
        return worker.ask(task)
    except Refused as error:
        return f"{platform.node()}: {error}"
    finally:
        with _lock:
            _busy[round_name].discard(worker)
            _idle[unsandboxed].append(worker)


def stop_here(round_name: str) -> None:
    """Ends what is being graded for a round that is over."""
    with _lock:
        for worker in _busy.pop(round_name, ()):
            worker.interrupt()


def _address() -> str:
    from distributed import get_worker

    try:
        return str(get_worker().address)
    except ValueError:  # not in a Dask worker: in a test
        return str(os.getpid())
