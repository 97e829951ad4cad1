"""However a run or its kernel ends: no process, no file, no shared memory is left behind."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.shardlab.marked_processes import HANG_LIMIT_S, MarkedProcesses, marked_processes

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(120)]

PREAMBLE = """
import os, signal, subprocess, sys, threading, time
import psutil
from shardlab import LaunchError, launch

def ranks_alive():
    servers = psutil.Process().children()
    return sum(len(server.children(recursive=True)) for server in servers)

def stay():
    print("up", flush=True)
    time.sleep(300)

def hello():
    return int(os.environ["RANK"])
"""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[MarkedProcesses]:
    with marked_processes(tmp_path) as marked:
        yield marked


def start_and_wait_until_ranks_are_up(
    processes: MarkedProcesses, program: str
) -> subprocess.Popen[str]:
    process = processes.start(PREAMBLE + program)
    assert process.stdout is not None
    for line in process.stdout:
        if line.endswith("up\n"):
            return process
    raise AssertionError("no rank came up")


def remaining_output(process: subprocess.Popen[str]) -> str:
    printed, _ = process.communicate(timeout=HANG_LIMIT_S)
    return printed


def test_after_runs_that_end_well_or_raise(processes: MarkedProcesses) -> None:
    """The last run's exception is not caught. One program, for speed."""
    process = processes.start(
        PREAMBLE
        + """
def fail():
    raise ValueError("no")

def shard():
    from torch.distributed.fsdp import fully_shard

print(launch(hello, world_size=3).outputs, ranks_alive())
try:
    launch(fail, world_size=3)
except LaunchError:
    print(ranks_alive())
launch(shard, world_size=1)
print(os.listdir(os.environ["TMPDIR"]))
launch(divmod, 1, 0, world_size=2)
"""
    )
    printed = remaining_output(process)
    assert printed.splitlines()[:3] == ["[0, 1, 2] 0", "0", "[]"]
    assert process.returncode == 1
    assert "RankError: rank" in printed
    assert processes.leftovers() == []


def test_an_interrupt_ends_the_ranks_and_the_next_launch_works(processes: MarkedProcesses) -> None:
    process = start_and_wait_until_ranks_are_up(
        processes,
        """
try:
    launch(stay, world_size=3, timeout_s=200)
except KeyboardInterrupt:
    print("interrupted", ranks_alive())
print(launch(hello, world_size=2).outputs)
""",
    )
    process.send_signal(signal.SIGINT)
    printed = remaining_output(process)
    assert "interrupted 0\n" in printed
    assert printed.endswith("[0, 1]\n")
    assert process.returncode == 0
    assert processes.leftovers() == []


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_killing_the_kernel_ends_its_ranks(processes: MarkedProcesses, sig: signal.Signals) -> None:
    process = start_and_wait_until_ranks_are_up(
        processes, "launch(stay, world_size=3, timeout_s=200, quiet=False)\n"
    )
    assert len(processes.alive()) >= 5
    process.send_signal(sig)
    process.wait(HANG_LIMIT_S)
    assert processes.leftovers() == []


def test_a_killed_rank_server_is_reported_and_replaced_at_the_next_launch(
    processes: MarkedProcesses,
) -> None:
    process = start_and_wait_until_ranks_are_up(
        processes,
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
    printed = remaining_output(process)
    assert "the next launch starts a new one" in printed
    assert printed.endswith("[0, 1]\n")
    assert processes.leftovers() == []


def test_processes_that_a_rank_started_end_with_it(processes: MarkedProcesses) -> None:
    """However they were started, and however the rank ended."""
    lines = processes.run(
        PREAMBLE
        + """
def in_the_same_group():
    subprocess.Popen(["sleep", "300"])

def in_a_new_session():
    subprocess.Popen(["sleep", "300"], start_new_session=True)

def as_a_daemon():
    subprocess.run(["sh", "-c", "setsid sleep 300 & exit 0"])

def returns():
    pass

def raises():
    raise ValueError

def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)

def work(start, end):
    start()
    time.sleep(0.2)
    end()

launch(returns, world_size=1)
(server,) = psutil.Process().children()
for start in (in_the_same_group, in_a_new_session, as_a_daemon):
    for end in (returns, raises, is_killed):
        try:
            launch(work, start, end, world_size=2)
        except LaunchError:
            pass
        _, alive = psutil.wait_procs(server.children(recursive=True), timeout=10)
        if alive:
            print(start.__name__, end.__name__, alive)
print("done")
"""
    )
    assert lines == ["done"]
    assert processes.leftovers() == []


def test_a_chain_of_sessions_ends_with_its_rank(processes: MarkedProcesses) -> None:
    """A rank's child in a new session has a child in another new session."""
    process = start_and_wait_until_ranks_are_up(
        processes,
        """
def work():
    chain = "setsid sleep 300 & exec sleep 300"
    subprocess.Popen(["sh", "-c", chain], start_new_session=True)
    time.sleep(0.5)
    print("up")

launch(work, world_size=1)
print("over")
""",
    )
    assert "over" in remaining_output(process)
    assert processes.leftovers() == []


def test_processes_that_ranks_started_end_if_the_server_is_killed(
    processes: MarkedProcesses,
) -> None:
    process = start_and_wait_until_ranks_are_up(
        processes,
        """
def work():
    subprocess.Popen(["sleep", "300"])
    stay()

try:
    launch(work, world_size=2, timeout_s=200)
except LaunchError as error:
    print("raised")
""",
    )
    (server,) = psutil.Process(process.pid).children()
    server.kill()
    assert "raised" in remaining_output(process)
    assert processes.leftovers() == []


def test_other_ways_to_launch(processes: MarkedProcesses) -> None:
    """From two concurrent threads, from a forked child, from a rank, from a class of __main__.

    One program does it all, for speed.
    """
    lines = processes.run(
        PREAMBLE
        + """
from dataclasses import dataclass

found = {}

def one(size):
    found[size] = launch(hello, world_size=size, quiet=True).outputs

threads = [threading.Thread(target=one, args=(size,)) for size in (2, 3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("threads", found[2], found[3], flush=True)

pid = os.fork()
if pid == 0:
    print("child", launch(hello, world_size=3).outputs, flush=True)
    sys.exit()
os.waitpid(pid, 0)
print("parent", launch(hello, world_size=2).outputs)

def outer():
    return launch(hello, world_size=2, quiet=True).outputs

print("rank", launch(outer, world_size=1).outputs)

@dataclass
class Point:
    x: int

    def moved(self):
        return Point(self.x + hello())

    @classmethod
    def fail(cls):
        raise ValueError("on purpose")

first, second = launch(Point(5).moved, world_size=2).outputs
print("method", first == Point(5), second == Point(6))
try:
    launch(Point.fail, world_size=1)
except LaunchError as error:
    print(error.headline)
print("alive", ranks_alive())
"""
    )
    headline = lines.pop(5)
    assert lines == [
        "threads [0, 1] [0, 1, 2]",
        "child [0, 1, 2]",
        "parent [0, 1]",
        "rank [[0, 1]]",
        "method True True",
        "alive 0",
    ]
    assert headline.startswith("rank 0 failed: ValueError: on purpose  [")
    assert 'raise ValueError("on purpose")]' in headline
    assert processes.leftovers() == []
