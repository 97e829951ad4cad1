"""Ops are compiled once, even if an earlier builder died."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch.utils.cpp_extension

from shardlab import LaunchError
from shardlab.ranks import builds, messages, stream
from shardlab.ranks.pending_builds import PendingBuilds
from shardlab.ranks.process import RankProcess

SOURCE = """
#include <Python.h>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "tiny"};
PyMODINIT_FUNC PyInit_tiny(void) { return PyModule_Create(&module); }
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", os.environ["PATH"])  # restored: build() changes both
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "")
    return tmp_path


class Compiler:
    """A stand-in for a DeepSpeed builder: compiles with the same torch function."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tiny.cpp"
        self.path.write_text(SOURCE)
        self.times = 0

    def __call__(self) -> None:
        self.times += 1
        torch.utils.cpp_extension.load("tiny", [str(self.path)])


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
@pytest.mark.timeout(120)
def test_a_dead_builders_lock_is_removed_and_a_built_op_is_not_rebuilt(cache: Path) -> None:
    folder = builds.folder("tiny")
    folder.mkdir(parents=True)
    (folder / "lock").touch()  # torch's own lock: torch would wait forever for its removal
    compiler = Compiler(cache)
    assert not builds.is_built("tiny")
    builds.build("tiny", compiler)
    builds.build("tiny", compiler)
    assert compiler.times == 1
    assert builds.is_built("tiny")
    assert folder.is_relative_to(cache)
    assert builds.load("tiny").__name__ == "tiny"


def test_two_concurrent_builders_build_once(cache: Path) -> None:
    begun, may_finish = threading.Event(), threading.Event()
    compiled = []

    def slow(name: str) -> None:
        compiled.append(name)
        begun.set()
        may_finish.wait(20)

    threads = [
        threading.Thread(target=builds.build, args=("tiny", lambda name=name: slow(name)))
        for name in ("first", "second")
    ]
    threads[0].start()
    assert begun.wait(20)
    threads[1].start()
    assert not builds.is_built("tiny")
    may_finish.set()
    for thread in threads:
        thread.join(20)
    assert compiled == ["first"]


def test_a_failed_build_does_not_count_as_built(cache: Path) -> None:
    def fail() -> None:
        raise RuntimeError("no such header")

    with pytest.raises(RuntimeError, match="no such header"):
        builds.build("tiny", fail)
    assert not builds.is_built("tiny")
    builds.build("tiny", lambda: None)
    assert builds.is_built("tiny")


class FakeChannel:
    """A stand-in for the channel to the rank server."""

    def __init__(self) -> None:
        self.builds: list[str] = []

    def build(self, op: str, report_fd: int) -> None:
        self.builds.append(op)


def rank_that_needs(op: str) -> tuple[RankProcess, socket.socket]:
    ours, theirs = socket.socketpair()
    process = RankProcess(0, ours, None, -1, state="running")  # type: ignore[arg-type]
    process.handle({"is": "needs", "op": op}, b"")
    return process, theirs


def test_ranks_wait_for_one_build_and_the_clock_is_paused() -> None:
    channel, pending = FakeChannel(), PendingBuilds(stream.Screen())
    waiting = [rank_that_needs("cpu_adam") for _ in range(2)]
    for process, _ in waiting:
        pending.request(process, channel)  # type: ignore[arg-type]
    assert channel.builds == ["cpu_adam"]
    assert pending.in_progress
    assert pending.paused_s(pending.since_s + 7) == 7
    pending.handle({"rank": "cpu_adam", "pid": 1})
    assert pending.in_progress
    pending.handle({"rank": "cpu_adam", "exit": 0, "max_rss_bytes": 0})
    assert not pending.in_progress
    assert pending.paused_s(pending.since_s + 100) == pending.earlier_s < 100
    for process, theirs in waiting:
        assert messages.receive(theirs) == ({"is": "built"}, b"")
        process.control.close()
        theirs.close()


def test_output_that_is_no_terminal_says_when_a_build_begins_and_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pending = PendingBuilds(stream.Terminal())
    process, theirs = rank_that_needs("cpu_adam")
    pending.request(process, FakeChannel())  # type: ignore[arg-type]
    pending.show(pending.since_s + 7)  # a line that would be redrawn
    begins = "compiling DeepSpeed's cpu_adam (once per machine): usually 40 to 90 s"
    assert capsys.readouterr().err == f"{begins} on two free cores …\n"
    pending.handle({"rank": "cpu_adam", "exit": 0, "max_rss_bytes": 0})
    assert capsys.readouterr().err == "compiled DeepSpeed's cpu_adam in 0 s\n"
    process.control.close()
    theirs.close()


def test_a_failed_build_ends_the_run() -> None:
    channel, pending = FakeChannel(), PendingBuilds(stream.Screen())
    process, theirs = rank_that_needs("async_io")
    pending.request(process, channel)  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match="async_io could not be compiled") as caught:
        pending.handle({"rank": "async_io", "failed": "no memory"})
    assert caught.value.headline.endswith("compiled: no memory")
    assert "libaio-dev" in caught.value.detail
    process.control.close()
    theirs.close()


def test_the_error_of_a_failed_build() -> None:
    headline, detail = builds.failure_message(
        "cpu_adam", "g++ ...\nfatal error: x.h\nno such header\n", 1
    )
    assert headline == "DeepSpeed's cpu_adam could not be compiled: no such header"
    assert "zero_force_ds_cpu_optimizer" in detail
    assert "fatal error: x.h" in detail
    assert "more than" in builds.failure_message("cpu_adam", "", -signal.SIGALRM)[0]
    assert "code -9" in builds.failure_message("other", "", -9)[0]
    assert builds.failure_message("other", "", -9)[1] == ""


def test_the_folder_depends_on_versions_and_device(cache: Path) -> None:
    name = builds.folder("cpu_adam").parent.name
    assert torch.__version__ in name
    assert f"py{sys.version_info.major}{sys.version_info.minor}" in name
    other = subprocess.run(
        [sys.executable, "-c", "from shardlab.ranks import builds; print(builds.folder('x'))"],
        env={**os.environ, "DS_ACCELERATOR": "cuda"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(other.stdout.strip()).parent.name != name
