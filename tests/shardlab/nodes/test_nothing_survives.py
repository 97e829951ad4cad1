"""However a run on several nodes ends: no process, namespace or network device is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shardlab.marked_processes import HANG_LIMIT_S, MarkedProcesses, marked_processes

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(120)]

PROGRAM = """
import os, socket, time
from shardlab import LaunchError, launch

def where():
    for kind in ("net", "uts", "mnt"):
        print(os.readlink(f"/proc/self/ns/{kind}"), flush=True)

def stay():
    where()
    print("up", flush=True)
    time.sleep(300)

def fail():
    where()
    raise ValueError

def run(fn):
    launch(fn, world_size=2, nodes=2, link_bits_per_s=1e8, timeout_s=200)
"""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[MarkedProcesses]:
    with marked_processes(tmp_path) as marked:
        yield marked


def named_in(lines: list[str]) -> set[str]:
    return {line.split()[-1] for line in lines if line.endswith("]")}


def namespaces_of_processes() -> set[str]:
    """All that some process is in or has a descriptor of."""
    found = set()
    for process in Path("/proc").iterdir():
        for folder in ("ns", "fd"):
            with contextlib.suppress(OSError):
                for entry in (process / folder).iterdir():
                    with contextlib.suppress(OSError):
                        found.add(os.readlink(entry))
    return found


def assert_nothing_is_left(processes: MarkedProcesses, namespaces: set[str]) -> None:
    own = {os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "uts", "mnt")}
    assert len(namespaces) == 5  # two networks, two host names, one file system
    assert not namespaces & own
    assert processes.leftovers() == []
    until_s = time.monotonic() + 10
    while namespaces & namespaces_of_processes() and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not namespaces & namespaces_of_processes()


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGINT])
def test_after_the_notebook_was_ended(processes: MarkedProcesses, sig: signal.Signals) -> None:
    devices = os.listdir("/sys/class/net")
    process = processes.start(f"{PROGRAM}\nrun(stay)")
    assert process.stdout is not None
    lines, ups = [], 0
    while ups < 2:
        lines.append(process.stdout.readline().strip())
        ups += lines[-1].endswith("up")
    assert named_in(lines) <= namespaces_of_processes()
    assert os.listdir("/sys/class/net") == devices  # none of ours, not even while it runs
    process.send_signal(sig)
    process.wait(HANG_LIMIT_S)
    assert_nothing_is_left(processes, named_in(lines))


def test_after_runs_in_a_notebook_that_lives_on(processes: MarkedProcesses) -> None:
    lines = processes.run(
        PROGRAM
        + """
def descriptors():
    paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sorted(os.readlink(path).split(":")[0] for path in paths if os.path.exists(path))

launch(divmod, 7, 2, world_size=2)
before = descriptors()
for fn in (where, fail):
    try:
        run(fn)
    except LaunchError:
        pass
    print(descriptors() == before)
"""
    )
    assert [line for line in lines if line in ("True", "False")] == ["True", "True"]
    first, second = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    assert_nothing_is_left(processes, named_in(first))
    assert_nothing_is_left(processes, named_in(second))
