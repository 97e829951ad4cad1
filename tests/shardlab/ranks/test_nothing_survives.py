"""However a run or its kernel ends: no process, no file, no shared memory is left behind."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.shardlab.family import HANG_LIMIT_S, Family, family

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(120)]

PREAMBLE = """
import os, signal, subprocess, sys, threading, time
import psutil
import torch.distributed as dist
from shardlab import LaunchError, launch

def ranks_alive():
    servers = psutil.Process().children()
    return sum(len(server.children(recursive=True)) for server in servers)

def stay():
    print("up", flush=True)
    time.sleep(300)

def hello():
    return dist.get_rank()
"""


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Family]:
    with family(tmp_path) as made:
        yield made


def start_and_wait_until_ranks_are_up(ours: Family, program: str) -> subprocess.Popen[str]:
    process = ours.start(PREAMBLE + program)
    assert process.stdout is not None
    for line in process.stdout:
        if line.endswith("up\n"):
            return process
    raise AssertionError("no rank came up")


def rest_of(process: subprocess.Popen[str]) -> str:
    printed, _ = process.communicate(timeout=HANG_LIMIT_S)
    return printed


def test_after_runs_that_end_well_or_raise(ours: Family) -> None:
    lines = ours.run(
        PREAMBLE
        + """
def fail():
    raise ValueError("no")

print(launch(hello, world_size=3).outputs, ranks_alive())
try:
    launch(fail, world_size=3)
except LaunchError:
    print(ranks_alive())
"""
    )
    assert lines == ["[0, 1, 2] 0", "0"]
    assert ours.left_behind() == []


def test_after_an_error_that_nobody_caught(ours: Family) -> None:
    with ours.start(PREAMBLE + "launch(divmod, 1, 0, world_size=2)\n") as process:
        printed = rest_of(process)
    assert process.returncode == 1
    assert "RankError: rank" in printed
    assert ours.left_behind() == []


def test_an_interrupt_ends_the_ranks_and_the_next_launch_works(ours: Family) -> None:
    process = start_and_wait_until_ranks_are_up(
        ours,
        """
try:
    launch(stay, world_size=3, timeout_s=200)
except KeyboardInterrupt:
    print("interrupted", ranks_alive())
print(launch(hello, world_size=2).outputs)
""",
    )
    process.send_signal(signal.SIGINT)
    printed = rest_of(process)
    assert "interrupted 0\n" in printed
    assert printed.endswith("[0, 1]\n")
    assert process.returncode == 0
    assert ours.left_behind() == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_killing_the_kernel_ends_its_ranks(ours: Family, how: signal.Signals) -> None:
    process = start_and_wait_until_ranks_are_up(
        ours, "launch(stay, world_size=3, timeout_s=200, quiet=False)\n"
    )
    assert len(ours.living()) >= 5
    process.send_signal(how)
    process.wait(HANG_LIMIT_S)
    assert ours.left_behind() == []


def test_killing_the_rank_server_is_told_and_the_next_launch_has_a_new_one(ours: Family) -> None:
    process = start_and_wait_until_ranks_are_up(
        ours,
        """
try:
    launch(stay, world_size=3, timeout_s=200)
except LaunchError as error:
    print(error.headline)
print(launch(hello, world_size=2).outputs)
""",
    )
    (server,) = psutil.Process(process.pid).children()
    server.kill()
    printed = rest_of(process)
    assert "the next launch starts a new one" in printed
    assert printed.endswith("[0, 1]\n")
    assert ours.left_behind() == []


START = {
    "in its group": 'subprocess.Popen(["sleep", "300"])',
    "in a session of its own": 'subprocess.Popen(["sleep", "300"], start_new_session=True)',
    "as a daemon": 'subprocess.run(["sh", "-c", "setsid sleep 300 & exit 0"])',
    "in a chain of sessions": (
        'subprocess.Popen(["sh", "-c", "setsid sleep 300 & exec sleep 300"], '
        "start_new_session=True); time.sleep(0.3)"
    ),
}


@pytest.mark.parametrize("ends", ["returns", "raises", "is killed"])
@pytest.mark.parametrize("how", START)
def test_what_a_rank_started_ends_with_it(ours: Family, how: str, ends: str) -> None:
    end = {
        "returns": "return 1",
        "raises": "raise ValueError",
        "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    }[ends]
    with ours.start(
        PREAMBLE
        + f"""
def work():
    {START[how]}
    {end}

try:
    launch(work, world_size=2)
except LaunchError:
    pass
print("over", flush=True)
time.sleep(300)
"""
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line == "over\n":
                    break
            sleepers = [p for p in ours.living() if p.name() == "sleep"]
            gone, alive = psutil.wait_procs(sleepers, timeout=5)
            assert alive == []
        finally:
            ours.end()


def test_what_ranks_started_ends_though_the_server_was_killed(ours: Family) -> None:
    process = start_and_wait_until_ranks_are_up(
        ours,
        """
def work():
    subprocess.Popen(["sleep", "300"])
    stay()

try:
    launch(work, world_size=2, timeout_s=200)
except LaunchError as error:
    print("told")
""",
    )
    (server,) = psutil.Process(process.pid).children()
    server.kill()
    try:
        assert "told" in process.communicate(timeout=15)[0]
    finally:
        ours.end()


def test_two_threads_may_launch_at_the_same_time(ours: Family) -> None:
    lines = ours.run(
        PREAMBLE
        + """
found = {}

def one(size):
    found[size] = launch(hello, world_size=size, quiet=True).outputs

threads = [threading.Thread(target=one, args=(size,)) for size in (2, 3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(found[2], found[3], ranks_alive())
"""
    )
    assert lines == ["[0, 1] [0, 1, 2] 0"]
    assert ours.left_behind() == []


def test_a_forked_child_has_ranks_of_its_own(ours: Family) -> None:
    lines = ours.run(
        PREAMBLE
        + """
print(launch(hello, world_size=2).outputs, flush=True)
pid = os.fork()
if pid == 0:
    print(launch(hello, world_size=3).outputs, flush=True)
    sys.exit()
os.waitpid(pid, 0)
print(launch(hello, world_size=2).outputs)
"""
    )
    assert lines == ["[0, 1]", "[0, 1, 2]", "[0, 1]"]
    assert ours.left_behind() == []


def test_a_rank_may_launch_ranks(ours: Family) -> None:
    lines = ours.run(
        PREAMBLE
        + """
def outer():
    return launch(hello, world_size=2, quiet=True).outputs

print(launch(outer, world_size=1).outputs, ranks_alive())
"""
    )
    assert lines == ["[[0, 1]] 0"]
    assert ours.left_behind() == []


def test_functions_and_classes_of_a_script(ours: Family) -> None:
    """What is defined in __main__ travels by value, and its lines are named."""
    lines = ours.run(
        PREAMBLE
        + """
from dataclasses import dataclass

@dataclass
class Point:
    x: int

    def moved(self):
        return Point(self.x + dist.get_rank())

    @classmethod
    def fail(cls):
        raise ValueError("on purpose")

first, second = launch(Point(5).moved, world_size=2).outputs
print(first == Point(5), second == Point(6))
try:
    launch(Point.fail, world_size=1)
except LaunchError as error:
    print(error.headline)
"""
    )
    assert lines[0] == "True True"
    assert lines[1].startswith("rank 0 failed: ValueError: on purpose")
    assert 'program.py, line ' in lines[1]
    assert 'raise ValueError("on purpose")' in lines[1]
