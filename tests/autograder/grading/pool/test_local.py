"""Workers die, fail and hang: every task comes back once, as a record or as a failure."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from autograder.grading.pool import local
from autograder.grading.pool.local import LocalPool
from autograder.grading.pool.worker import CannotGrade
from autograder.grading.record.record import GRADED, INFRASTRUCTURE_ERROR
from autograder.sandbox.host import SharedForkServer
from tests.autograder.grading.fake_work import fake_work, task

REPO = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def _fake_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "work", fake_work)


def test_every_task_comes_back_once() -> None:
    started = []
    names = [f"student{number}" for number in range(20)]
    with LocalPool(2, unsandboxed=True) as pool:
        records = list(pool.grade_all(map(task, names), lambda task: started.append(task.student)))
        assert sorted(record.student for record in records) == sorted(names)
        assert started == names
        assert {record.state for record in records} == {GRADED}
        (again,) = pool.grade_all([task("late")])  # by the same workers
        assert again.student == "late"


def test_tasks_may_come_while_others_are_graded(tmp_path: Path) -> None:
    """None means that there is no task yet; if none is in flight, the call ends."""
    with LocalPool(2, unsandboxed=True) as pool:
        assert list(pool.grade_all(iter([None, task("never")]))) == []
        tasks = iter([task("ann", "fail_once " + str(tmp_path / "ann")), None, task("bob"), None])
        records = list(pool.grade_all(tasks))
    assert sorted(record.student for record in records) == ["ann", "bob"]


def test_workers_share_a_fork_server_for_each_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Including workers from an earlier lab, which would otherwise each start their own."""
    ends = []

    def fork_server(engine: str) -> SharedForkServer:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ends.append(theirs)
        return SharedForkServer(ours)

    monkeypatch.setattr(local, "ForkServerProcess", fork_server)
    with LocalPool(2) as pool:
        (one,) = pool.grade_all([task("ann", "fork_servers")])
        of_06 = [task(who, "fork_servers", code="import deepspeed") for who in ("ann", "bob")]
        others = list(pool.grade_all(of_06))
    for end in ends:
        end.close()
    assert one.reason == "torch"
    assert [other.reason for other in others] == ["torch deepspeed"] * 2


def test_submissions_of_dead_and_failed_workers_are_retried(tmp_path: Path) -> None:
    tasks = [
        task("ann"),
        task("bomb", f"die {tmp_path / 'bomb'}"),
        task("unlucky", f"die_once {tmp_path / 'unlucky'}"),
        task("poor", f"fail {tmp_path / 'poor'}"),
        task("once", f"fail_once {tmp_path / 'once'}"),
        task("slow", "hang", timeout_s=0.5),
        task("zoe"),
    ]
    with LocalPool(2, unsandboxed=True) as pool:
        records = {record.student: record for record in pool.grade_all(tasks)}
    assert len(records) == len(tasks)
    failed = {name: record.reason for name, record in records.items() if not record.is_final}
    assert failed == {
        "bomb": "its worker died (killed by SIGKILL)",
        "poor": "no memory for ranks",
        "slow": "it was not graded within 0 minutes",
    }
    assert records["bomb"].state == INFRASTRUCTURE_ERROR
    tries = {path.name: len(path.read_text().split()) for path in tmp_path.iterdir()}
    assert tries == {"bomb": 3, "poor": 3, "unlucky": 2, "once": 2}


def test_a_machine_that_cannot_grade_ends_the_run() -> None:
    with LocalPool(1) as pool, pytest.raises(CannotGrade, match="install bubblewrap"):
        list(pool.grade_all([task("ann", "refuse"), task("bob")]))


def test_stopping_early_leaves_no_process(tmp_path: Path) -> None:
    with LocalPool(2, unsandboxed=True) as pool:
        for record in pool.grade_all([task("ann"), task("endless", f"hang {tmp_path / 'pid'}")]):
            assert record.student == "ann"
            wait_for(lambda: has_text(tmp_path / "pid"))
            break
    wait_for(lambda: not psutil.pid_exists(int((tmp_path / "pid").read_text())))


GRADES_FOREVER = """
import sys
from autograder.grading.pool import local
from tests.autograder.grading.fake_work import fake_work, task
local.work = fake_work
if __name__ == "__main__":
    with local.LocalPool(1) as pool:
        list(pool.grade_all([task("ann", f"hang {sys.argv[1]}")]))
"""


def test_workers_and_their_children_die_with_their_parent(tmp_path: Path) -> None:
    (tmp_path / "grades.py").write_text(GRADES_FOREVER)
    parent = subprocess.Popen(
        [sys.executable, tmp_path / "grades.py", tmp_path / "pid"],
        env={**os.environ, "PYTHONPATH": str(REPO)},
    )
    try:
        wait_for(lambda: has_text(tmp_path / "pid"))
        worker = psutil.Process(int((tmp_path / "pid").read_text()))
        wait_for(lambda: worker.children())
        family = [worker, *worker.children()]
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    wait_for(lambda: not any(one.is_running() and one.status() != "zombie" for one in family))


def has_text(path: Path) -> bool:
    """A file exists before it has content."""
    return path.exists() and path.read_text() != ""


def wait_for(condition: object) -> None:
    """Fails only at the test's own time limit, even on a busy machine."""
    while not condition():  # type: ignore[operator]
        time.sleep(0.02)
