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
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field

from distributed import Client, Future, KilledWorker, get_worker
from distributed.client import FutureCancelledError
from distributed.comm.addressing import parse_address, parse_host_port

from autograder.grading.pool.local import OnStart, Round, Try, Worker
from autograder.grading.pool.worker import Refused
from autograder.grading.record.record import TASKS, BrokenRecord, Record, Task, failed
from autograder.grading.record.version import code_version

log = logging.getLogger(__name__)

CONNECT_S = 10.0
FIRST_WORKER_S = 60.0  # for the first worker to join
ALONE_S = 300.0  # without any worker, until the run is given up


class ClusterPool:
    """A local.Pool whose workers are those of a Dask scheduler.

    A submission whose Dask worker dies is run again by Dask itself, up to the scheduler's
    ``allowed-failures`` (3 where nothing else is set); one whose grading fails is tried again,
    on another worker where there is one.
    """

    def __init__(self, address: str, unsandboxed: bool = False) -> None:
        self._address = address
        self._unsandboxed = unsandboxed

    def __enter__(self) -> ClusterPool:
        """Raises Refused where nobody answers, or a worker has other code than this machine."""
        self._client = _connect(self._address)
        try:
            _require_workers(self._client, self._address)
        except BaseException:
            self._client.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def grade_all(self, tasks: Iterable[Task], on_start: OnStart | None = None) -> Iterator[Record]:
        """See Pool."""
        return _ClusterRound(
            iter(tasks),
            on_start,
            client=self._client,
            address=self._address,
            unsandboxed=self._unsandboxed,
        ).records()


@dataclass(kw_only=True)
class _ClusterRound(Round):
    client: Client
    address: str
    unsandboxed: bool
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    saw_worker_s: float = field(default_factory=time.monotonic)

    def room(self) -> int:
        """As many as the workers have threads: no task waits at a worker, to be held against it
        should that one die."""
        try:
            threads = sum(self.client.nthreads().values())
        except Exception as error:  # the connection broke
            raise self._gone() from error
        if threads:
            self.saw_worker_s = time.monotonic()
        elif time.monotonic() - self.saw_worker_s > ALONE_S:
            raise Refused(
                f"{self.address} has been without workers for {ALONE_S:.0f} s: every grade that "
                f"was reported is kept. Start workers ({_how(self.address)}), then the same "
                "command again."
            )
        return max(1, threads)

    def submit(self, attempt: Try) -> Future:
        task = attempt.task
        others = sorted(set(self.client.nthreads()) - attempt.failed_at)
        return self.client.submit(
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

    def answer(self, future: Future, task: Task) -> tuple[Record | str, str]:
        try:
            answer = json.loads(future.result())
            worker = str(answer["worker"])
            if "failed" in answer:
                return str(answer["failed"]), worker
            record = Record.from_json(answer["record"])
        except KilledWorker as error:  # Dask has tried often enough
            why = f"{error.allowed_failures + 1} workers died while grading it"
            log.warning("%s, %s: %s", task.lab, task.student, why)
            return failed(task, why), ""
        except (FutureCancelledError, CancelledError) as error:
            raise self._gone() from error
        except BrokenRecord as error:
            return f"what came from {worker} is {error}", worker
        except Exception as error:  # of a worker that cannot even load this file, say
            return f"{type(error).__name__}: {error}", ""
        finally:
            future.release()
        if (record.lab, record.student, record.key) != (task.lab, task.student, task.key):
            return f"{worker} answered for another submission", worker
        return record, worker

    def _gone(self) -> Refused:
        return Refused(
            f"the scheduler at {self.address} is gone: every grade that was reported is kept. "
            "Start it and its workers, then the same command again."
        )

    def cancel(self) -> None:
        if self.under_way and self.client.status == "running":
            with contextlib.suppress(Exception):
                self.client.cancel(list(self.under_way), force=True)
                self.client.run(stop_here, self.name, on_error="ignore")


# ---- on the machine of whoever starts the grading


def _connect(address: str) -> Client:
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
    wrong = [
        f"{worker} cannot load the autograder ({_innermost(found)})"
        if isinstance(found, BaseException)
        else f"{worker} has version {found}"
        for worker, found in client.run(version_here, on_error="return").items()
        if found != code_version()
    ]
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
    return TASKS.dump_json(task).decode()


def from_text(text: str) -> Task:
    return TASKS.validate_json(text)


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
    answer = _graded(from_text(text), round_name, unsandboxed)
    said = {"record": answer.to_json()} if isinstance(answer, Record) else {"failed": answer}
    return json.dumps({**said, "worker": _address()})


def _graded(task: Task, round_name: str, unsandboxed: bool) -> Record | str:
    if task.code != version_here():  # of a worker that joined late, or was changed meanwhile
        return f"{platform.node()} has version {code_version()} of the course, not {task.code}"
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
    try:
        return str(get_worker().address)
    except ValueError:  # not in a Dask worker: in a test
        return str(os.getpid())
