"""A Dask scheduler and its workers, each a separate process on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import nbformat
import pytest
from distributed import Client

from autograder import exercises
from autograder.grading.pool import cluster
from autograder.grading.pool.cluster import ClusterPool, from_text, to_text
from autograder.grading.pool.local import LocalPool
from autograder.grading.pool.worker import CannotGrade
from autograder.grading.record.record import (
    GRADED,
    INFRASTRUCTURE_ERROR,
    UNREADABLE,
    Record,
    Task,
)
from autograder.grading.record.version import code_version
from autograder.sandbox import limits_of
from tests.autograder.grading import fake_graders
from tests.autograder.grading.copied_course import REPO, notebook_of, read, source_of, with_answers

LAB = "03_ring_all_reduce"
START_LIMIT_S = 60
DEATHS = 2  # of workers before this scheduler gives up a task: its default of 4 takes longer

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(900)]


@dataclass
class Cluster:
    client: Client
    scheduler: subprocess.Popen[bytes]
    folder: Path
    started: ExitStack

    @property
    def address(self) -> str:
        return self.client.scheduler.address

    def add_worker(self, *options: str) -> subprocess.Popen[bytes]:
        """Returns once the worker is registered with the scheduler."""
        known = len(self.client.nthreads())
        process = self.started.enter_context(
            dask(
                self.folder,
                *("worker", self.address, "--nthreads", "1", "--no-dashboard"),
                *("--host", "127.0.0.1", "--local-directory", str(self.folder), *options),
            )
        )
        wait_for(lambda: len(self.client.nthreads()) > known, self.folder)
        return process


@contextmanager
def dask(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Dask command in a separate process group, which is stopped as a whole."""
    log = (folder / f"{time.monotonic_ns()}.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "dask", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")]),
            "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": str(DEATHS - 1),
        },
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with log:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_for(done, folder: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not done():
        logs = "\n".join(path.read_text()[-1500:] for path in folder.glob("*.log"))
        assert time.monotonic() < deadline, logs
        time.sleep(0.05)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A scheduler and one worker, started as by an instructor."""
    folder = tmp_path_factory.mktemp("dask")
    record = folder / "scheduler.json"
    with ExitStack() as started:
        scheduler = started.enter_context(
            dask(
                folder,
                *("scheduler", "--port", "0", "--host", "127.0.0.1", "--no-dashboard"),
                *("--scheduler-file", str(record)),
            )
        )
        wait_for(lambda: record.exists() and record.read_text().endswith("}"), folder)
        address = json.loads(record.read_text())["address"]
        client = started.enter_context(Client(address, set_as_default=False))
        found = Cluster(client, scheduler, folder, started)
        found.add_worker()
        yield found


def task_of(student: str, submitted: bytes | None = b"", unreadable: str = "") -> Task:
    released = REPO / "labs" / notebook_of(LAB)
    return Task(
        lab=LAB,
        student=student,
        submitted=submitted,
        unreadable=unreadable,
        template=json.loads(json.dumps(nbformat.read(released, as_version=4))),
        seed=7,
        limits=asdict(limits_of(LAB)),
        code=code_version(),
    )


def a_class() -> list[Task]:
    """A right, a wrong and an unreadable submission; their other answers need no ranks."""
    solution, lab = (read(REPO / side / notebook_of(LAB)) for side in ("solutions", "labs"))
    answers = {
        "ada": {"chunk_bounds": source_of(solution, "chunk_bounds")},
        "bob": {"chunk_bounds": "def chunk_bounds(length, parts):\n    return [0] * parts"},
    }
    blank = {exercise.answer: "0" for exercise in exercises.of_lab(LAB)}
    notebooks = {name: with_answers(lab, blank | given) for name, given in answers.items()}
    tasks = [task_of(name, json.dumps(given).encode()) for name, given in notebooks.items()]
    return [*tasks, task_of("cleo", b'{"cells": [')]


def test_a_killed_worker_costs_nobody_a_grade(running: Cluster) -> None:
    tasks = a_class()
    killed = running.add_worker("--no-nanny")
    records: dict[str, Record] = {}
    with ClusterPool(running.address) as pool:
        for record in pool.grade_all(tasks):
            if not records:  # both workers are busy now
                killed.kill()
            assert record.student not in records
            records[record.student] = record
    with LocalPool(jobs=1) as pool:
        here = {record.student: record for record in pool.grade_all(tasks)}
    assert {name: record.decided() for name, record in records.items()} == {
        name: record.decided() for name, record in here.items()
    }
    assert records["cleo"].state == UNREADABLE
    assert sum(records["ada"].points.values()) > 0 == sum(records["bob"].points.values())


def graded_by(monkeypatch: pytest.MonkeyPatch, fake, running: Cluster, *tasks: Task):
    monkeypatch.setattr(cluster, "grade_on_worker", fake)
    with ClusterPool(running.address) as pool:
        records = list(pool.grade_all(tasks))
    assert sorted(record.student for record in records) == sorted(task.student for task in tasks)
    return {record.student: record for record in records}


def test_a_submission_that_always_kills_its_worker_stops_no_other(
    running: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [task_of(name) for name in ("ada", "bomb", "cleo")]
    records = graded_by(monkeypatch, fake_graders.kills_its_worker, running, *tasks)
    assert records["bomb"].state == INFRASTRUCTURE_ERROR
    assert records["bomb"].reason == f"{DEATHS} workers died while grading it"
    assert records["ada"].state == records["cleo"].state == GRADED


@pytest.mark.parametrize("is_fixed", [True, False])
def test_a_failed_submission_is_retried(
    running: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_fixed: bool
) -> None:
    task = task_of("unlucky", unreadable=str(tmp_path / "fixed") if is_fixed else "")
    record = graded_by(monkeypatch, fake_graders.fails, running, task)["unlucky"]
    assert record.state == (GRADED if is_fixed else INFRASTRUCTURE_ERROR)
    assert record.reason == ("" if is_fixed else "the disk is full")


def test_a_record_of_something_else_is_not_a_grade(
    running: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [task_of("garbled"), task_of("exchanged")]
    records = graded_by(monkeypatch, fake_graders.answers_wrongly, running, *tasks)
    assert {record.state for record in records.values()} == {INFRASTRUCTURE_ERROR}
    assert "not a record" in records["garbled"].reason
    assert "another submission" in records["exchanged"].reason


def test_an_interrupted_run_leaves_nothing_on_the_cluster(
    running: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cluster, "grade_on_worker", fake_graders.waits_for_file)
    done, never = tmp_path / "done", tmp_path / "never"
    done.touch()
    tasks = [task_of("ada", unreadable=str(done)), task_of("bob", unreadable=str(never))]
    with ClusterPool(running.address) as pool:
        records = pool.grade_all(tasks)
        assert next(records).student == "ada"
        records.close()  # as an interrupt does
        # cancelled tasks disappear a moment later
        deadline = time.monotonic() + 30
        while left := running.client.run_on_scheduler(
            lambda dask_scheduler: [*dask_scheduler.tasks]
        ):
            assert time.monotonic() < deadline, left
            time.sleep(0.1)
        never.touch()


def test_a_stop_ends_only_its_own_round(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        def __init__(self, unsandboxed: bool) -> None:
            self.interrupted = threading.Event()

        def ask(self, task: Task) -> str:
            started.release()
            return "stopped" if self.interrupted.wait(60) else "went on"

        def interrupt(self) -> None:
            self.interrupted.set()

        def disconnect(self) -> None:
            pass

    monkeypatch.setattr(cluster, "Worker", Slow)
    started = threading.Semaphore(0)
    answers: dict[str, str] = {}

    def grade(round_name: str) -> None:
        answers[round_name] = json.loads(
            cluster.grade_on_worker(to_text(task_of("x")), round_name, False)
        )

    threads = [threading.Thread(target=grade, args=(name,)) for name in ("mine", "yours")]
    for thread in threads:
        thread.start()
        started.acquire()
    cluster.stop_on_worker("mine")
    threads[0].join()
    assert answers["mine"]["failed"] == "stopped"
    assert threads[1].is_alive()
    cluster.stop_on_worker("yours")
    threads[1].join()


def test_workers_with_other_code_are_refused(
    running: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "code_version", lambda: "0123abcd")
    with pytest.raises(CannotGrade, match=rf"0123abcd.*\n.*{code_version()}.*\n.*same commit"):
        ClusterPool(running.address).__enter__()


def test_a_worker_with_changed_code_grades_nothing() -> None:
    answer = json.loads(
        cluster.grade_on_worker(to_text(replace(task_of("x"), code="old")), "r", False)
    )
    assert answer["failed"].endswith(f"has version {code_version()} of the course, not old")


def test_an_unreachable_scheduler_is_named() -> None:
    with pytest.raises(CannotGrade, match=r"tcp://127\.0\.0\.1:9 .*dask scheduler"):
        ClusterPool("127.0.0.1:9").__enter__()
    with pytest.raises(CannotGrade, match="nonsense://there"):
        ClusterPool("nonsense://there").__enter__()


def test_a_task_is_the_same_after_a_round_trip_as_text() -> None:
    task = replace(task_of("ada", submitted=bytes(range(256))), notes=("one", "two"))
    assert from_text(to_text(task)) == task
    assert from_text(to_text(task)).key == task.key
    assert from_text(to_text(task_of("bob", None, "it is a link"))).submitted is None


def test_a_dead_scheduler_is_reported(
    running: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Must be the last test in this file: it kills the scheduler."""
    monkeypatch.setattr(cluster, "grade_on_worker", fake_graders.waits_for_file)
    done, never = tmp_path / "done", tmp_path / "never"
    done.touch()
    tasks = [task_of("ada", unreadable=str(done)), task_of("bob", unreadable=str(never))]
    with ClusterPool(running.address) as pool:
        records = pool.grade_all(tasks)
        assert next(records).student == "ada"
        running.client.close()
        running.scheduler.kill()
        with pytest.raises(CannotGrade, match=r"is gone\. All reported grades are saved"):
            next(records)
    never.touch()
