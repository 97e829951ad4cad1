"""Grading on other machines, with any Dask scheduler, however its workers were started.

    with ClusterPool("tcp://head:8786") as pool:
        for record in pool.grade_all(tasks):
            ...

A task is sent as text, and a record comes back as text. Dask pickles that text and the names of two
functions of this file; nothing that a student made is ever unpickled. Each thread of a Dask worker
has a separate grading process, the same that ``local`` starts on one machine, which keeps one
sandbox: whatever student code does to that process does not reach Dask.
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
from collections.abc import Generator, Iterable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field

from distributed import Client, Future, KilledWorker, get_worker
from distributed.client import FutureCancelledError
from distributed.comm.addressing import parse_address, parse_host_port

from autograder.grading.pool.local import GradingAttempt, OnStart, Round, Worker
from autograder.grading.pool.worker import CannotGrade
from autograder.grading.record.record import TASKS, BrokenRecord, Record, Task, failed
from autograder.grading.record.version import code_version

log = logging.getLogger(__name__)

CONNECT_S = 10.0
FIRST_WORKER_S = 60.0  # for the first worker to join
NO_WORKER_S = 300.0  # without any worker, until the run gives up


class ClusterPool:
    """A local.Pool that uses the workers of a Dask scheduler.

    If a Dask worker dies, Dask reruns its submission, up to the scheduler's ``allowed-failures``
    (3 by default); if grading fails, the submission is retried, on another worker if there is one.
    """

    def __init__(self, address: str, unsandboxed: bool = False) -> None:
        self._address = address
        self._unsandboxed = unsandboxed

    def __enter__(self) -> ClusterPool:
        """Raises CannotGrade if there is no answer, or if a worker runs other code."""
        self._client = _connect(self._address)
        try:
            _require_workers(self._client, self._address)
        except BaseException:
            self._client.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def grade_all(
        self, tasks: Iterable[Task | None], on_start: OnStart | None = None
    ) -> Generator[Record, None, None]:
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

    def max_in_flight(self) -> int:
        """One task for each worker thread: a task that waits at a worker would count as failed if
        that worker died."""
        try:
            threads = sum(self.client.nthreads().values())
        except Exception as error:  # the connection broke
            raise self._scheduler_is_gone() from error
        if threads:
            self.saw_worker_s = time.monotonic()
        elif time.monotonic() - self.saw_worker_s > NO_WORKER_S:
            raise CannotGrade(
                f"{self.address} has had no workers for {NO_WORKER_S:.0f} s. All reported grades "
                f"are saved: start workers ({_how_to_start_workers(self.address)}), then run the "
                "same command again."
            )
        return max(1, threads)

    def submit(self, attempt: GradingAttempt) -> Future:
        task = attempt.task
        others = sorted(set(self.client.nthreads()) - attempt.failed_at)
        return self.client.submit(
            grade_on_worker,
            to_text(task),
            self.name,
            self.unsandboxed,
            key=f"{task.lab}-{task.student}-{attempt.number}-{self.name}",
            # Only a preference: do not wait for a worker that has ended.
            workers=others if attempt.failed_at and others else None,
            allow_other_workers=bool(attempt.failed_at and others),
            pure=False,
        )

    def result_of(self, future: Future, task: Task) -> tuple[Record | str, str]:
        try:
            reply = json.loads(future.result())
            worker = str(reply["worker"])
            if "failed" in reply:
                return str(reply["failed"]), worker
            record = Record.from_json(reply["record"])
        except KilledWorker as error:  # Dask gives up
            why = f"{error.allowed_failures + 1} workers died while grading it"
            log.warning("%s, %s: %s", task.lab, task.student, why)
            return failed(task, why), ""
        except (FutureCancelledError, CancelledError) as error:
            raise self._scheduler_is_gone() from error
        except BrokenRecord as error:
            return f"invalid reply from {worker}: {error}", worker
        except Exception as error:  # for example, the worker cannot import this file
            return f"{type(error).__name__}: {error}", ""
        finally:
            future.release()
        if (record.lab, record.student, record.key) != (task.lab, task.student, task.key):
            return f"{worker} replied for another submission", worker
        return record, worker

    def _scheduler_is_gone(self) -> CannotGrade:
        return CannotGrade(
            f"the scheduler at {self.address} is gone. All reported grades are saved: "
            "start it and its workers, then run the same command again."
        )

    def cancel(self) -> None:
        if self.in_flight and self.client.status == "running":
            with contextlib.suppress(Exception):
                self.client.cancel(list(self.in_flight), force=True)
                self.client.run(stop_on_worker, self.name, on_error="ignore")


# ---- on the machine that starts the grading


def _connect(address: str) -> Client:
    if "://" not in address:
        address = f"tcp://{address}"
    try:
        # Dask itself would keep retrying.
        host_and_port = parse_host_port(parse_address(address)[1], default_port=8786)
        socket.create_connection(host_and_port, CONNECT_S).close()
        return Client(address, timeout=CONNECT_S, set_as_default=False, name="shardlab")
    except (OSError, ValueError, TimeoutError) as error:
        raise CannotGrade(
            f"no Dask scheduler answers at {address} ({_innermost(error)}): start one with "
            "`dask scheduler`, which prints its address, or leave out --scheduler to grade on this "
            "machine."
        ) from error


def _require_workers(client: Client, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=FIRST_WORKER_S)
    except TimeoutError as error:
        raise CannotGrade(
            f"no worker joined the scheduler at {address} within {FIRST_WORKER_S:.0f} s: start "
            f"workers ({_how_to_start_workers(address)})."
        ) from error
    wrong = [
        f"{worker} cannot import the autograder ({_innermost(found)})"
        if isinstance(found, BaseException)
        else f"{worker} has version {found}"
        for worker, found in client.run(version_on_worker, on_error="return").items()
        if found != code_version()
    ]
    if wrong:
        raise CannotGrade(
            f"nothing was graded: this machine has version {code_version()} of the course, but\n  "
            + "\n  ".join(sorted(wrong))
            + "\nUse the same commit and the same requirements.lock on all machines, and restart "
            "their workers."
        )


def _how_to_start_workers(address: str) -> str:
    return f"`.venv/bin/dask worker {address}` in this repository, on each machine"


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def to_text(task: Task) -> str:
    return TASKS.dump_json(task).decode()


def from_text(text: str) -> Task:
    return TASKS.validate_json(text)


# ---- on the workers

_lock = threading.Lock()
_idle: dict[bool, list[Worker]] = defaultdict(list)  # {unsandboxed: ...}
_busy: dict[str, set[Worker]] = defaultdict(set)  # {round: ...}


def _close() -> None:
    for workers in _idle.values():
        for worker in workers:
            worker.disconnect()


# Runs before this process joins its children, which would keep waiting for a task.
multiprocessing.util.Finalize(None, _close, exitpriority=10)


def version_on_worker() -> str:
    """The version of the files on disk, which the next worker process would run."""
    code_version.cache_clear()
    return code_version()


def grade_on_worker(text: str, round_name: str, unsandboxed: bool) -> str:
    """A record, or why there is none, as JSON. Thread-safe."""
    result = _graded(from_text(text), round_name, unsandboxed)
    reply = {"record": result.to_json()} if isinstance(result, Record) else {"failed": result}
    return json.dumps({**reply, "worker": _address()})


def _graded(task: Task, round_name: str, unsandboxed: bool) -> Record | str:
    if task.code != version_on_worker():  # the worker joined late, or its files changed
        return f"{platform.node()} has version {code_version()} of the course, not {task.code}"
    # Dask's nanny makes its worker a daemon, which may not have children; ours end with it.
    multiprocessing.current_process().daemon = False
    with _lock:
        worker = _idle[unsandboxed].pop() if _idle[unsandboxed] else Worker(unsandboxed)
        _busy[round_name].add(worker)
    try:
        return worker.ask(task)
    except CannotGrade as error:
        return f"{platform.node()}: {error}"
    finally:
        with _lock:
            _busy[round_name].discard(worker)
            _idle[unsandboxed].append(worker)


def stop_on_worker(round_name: str) -> None:
    """Kill the processes that grade for a round that has ended."""
    with _lock:
        for worker in _busy.pop(round_name, ()):
            worker.interrupt()


def _address() -> str:
    try:
        return str(get_worker().address)
    except ValueError:  # not in a Dask worker, but in a test
        return str(os.getpid())
