"""Ranks that fail: the error names the rank that caused it, and its line."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from shardlab import LaunchError, RankError, RunTimeout
from shardlab.errors import MachineTooBusy
from shardlab.ranks import clock
from shardlab.ranks.client import OwnHost
from shardlab.ranks.execution import Execution
from shardlab.ranks.process import RankProcess
from shardlab.ranks.rank_set import RankSet
from shardlab.ranks.supervise import Supervisor
from shardlab.ranks.trust import Trust
from tests.shardlab.failing import fails, fails_on, names_line

pytestmark = pytest.mark.ranks


class TestARankThatFails:
    def test_exception_while_others_wait(self) -> None:
        def work() -> int:
            tensor = torch.ones(4)
            dist.all_reduce(tensor)
            print("so far", flush=True)
            dist.all_reduce(tensor)  # every rank prints before the failure ends it
            if dist.get_rank() == 2:
                raise ValueError("bad weights")
            dist.all_reduce(tensor)
            return 1

        error = fails(work, world_size=4)
        assert isinstance(error, RankError)
        assert (error.rank, error.kind, error.message) == (2, "ValueError", "bad weights")
        assert error.headline.startswith("rank 2 failed: ValueError: bad weights")
        assert names_line(error, 'raise ValueError("bad weights")')
        assert "in work" in error.detail
        assert error.run is not None
        assert error.run.stdout == ["so far\n"] * 4
        assert error.run.outputs == [None] * 4
        assert {call.op for call in error.run.calls} == {"all_reduce"}
        assert error.run.traffic.sent_bytes.sum() > 0

    def test_outputs_of_the_ranks_that_finished_are_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        handled = tmp_path / "handled"
        handle = RankProcess.handle

        def handle_and_signal(self: RankProcess, header: dict[str, Any], body: bytes) -> None:
            handle(self, header, body)
            if self.state == "finished":
                handled.touch()

        monkeypatch.setattr(RankProcess, "handle", handle_and_signal)

        def work() -> str:
            if dist.get_rank() == 1:
                while not handled.exists():
                    time.sleep(0.01)
                raise RuntimeError("late")
            return "done"

        error = fails(work)
        assert error.run is not None
        assert error.run.outputs == ["done", None]

    def test_the_cause_is_named_not_its_consequence(self) -> None:
        def work() -> None:
            if dist.get_rank() == 3:
                sys.stdout.flush()
                raise KeyError("the cause")
            dist.all_reduce(torch.ones(1_000_000))

        error = fails(work, world_size=4)
        assert isinstance(error, RankError)
        assert (error.rank, error.kind) == (3, "KeyError")

    def test_an_exception_with_a_cause(self) -> None:
        def work() -> None:
            try:
                {}["missing"]
            except KeyError as error:
                raise RuntimeError("no such layer") from error

        detail = fails(work, world_size=1).detail
        assert detail.index("KeyError: 'missing'") < detail.index("RuntimeError: no such layer")

    def test_sys_exit(self) -> None:
        def work() -> None:
            if dist.get_rank() == 1:
                sys.exit(3)
            dist.barrier()

        error = fails(work)
        assert isinstance(error, RankError)
        assert (error.rank, error.kind) == (1, "SystemExit")
        assert "sys.exit(3)" in error.headline
        assert names_line(error, "sys.exit(3)")

    def test_os_exit_0_is_a_failure_too(self) -> None:
        def work() -> None:
            if dist.get_rank() == 1:
                os._exit(0)
            dist.barrier()

        error = fails(work)
        assert isinstance(error, RankError)
        assert (error.rank, error.kind) == (1, "exit")
        assert "exited with code 0" in error.headline
        assert names_line(error, "os._exit(0)")

    def test_an_exit_that_is_reported_late_is_still_the_cause(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a busy machine the server may report it long after another rank lost its peer."""
        read_server = Supervisor._read_server
        delayed = 60

        def read_late(self: Supervisor) -> None:
            nonlocal delayed
            if any(process.state == "failed" for process in self.ranks):
                delayed -= 1
            if self.execution is None or delayed <= 0:
                read_server(self)
            else:
                time.sleep(0.01)

        monkeypatch.setattr(Supervisor, "_read_server", read_late)

        def work() -> None:
            if dist.get_rank() == 1:
                os._exit(3)
            dist.barrier()

        error = fails(work)
        assert delayed <= 0
        assert isinstance(error, RankError)
        assert (error.rank, error.kind) == (1, "exit")

    def test_a_students_eoferror_is_an_ordinary_exception(self) -> None:
        def work() -> None:
            if dist.get_rank() == 1:
                raise EOFError("my file is short")
            dist.barrier()

        error = fails(work)
        assert isinstance(error, RankError)
        assert (error.rank, error.kind, error.message) == (1, "EOFError", "my file is short")

    def test_a_childs_exit_is_not_reported_as_the_line_where_its_rank_was_killed(self) -> None:
        def work() -> None:
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            os.kill(os.getpid(), signal.SIGKILL)

        error = fails(work, world_size=1)
        assert isinstance(error, RankError)
        assert error.kind == "SIGKILL"
        assert "os._exit" not in error.headline

    def test_segmentation_fault(self) -> None:
        def work() -> None:
            if dist.get_rank() == 0:
                ctypes.string_at(0)
            dist.barrier()

        error = fails(work)
        assert isinstance(error, RankError)
        assert (error.rank, error.kind) == (0, "SIGSEGV")
        assert names_line(error, "ctypes.string_at(0)")

    def test_abort(self) -> None:
        def work() -> None:
            if dist.get_rank() == 1:
                os.abort()
            dist.barrier()

        error = fails(work)
        assert isinstance(error, RankError)
        assert (error.rank, error.kind) == (1, "SIGABRT")
        assert names_line(error, "os.abort()")

    def test_killed_during_a_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read_logs = Execution.read_logs

        def kill_rank_1_in_its_call(self: Execution) -> None:
            read_logs(self)
            rank_1 = self.ranks[1]
            if self.log.pending[1] and rank_1.state == "running":
                assert rank_1.pid
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank_1.pid, signal.SIGKILL)

        monkeypatch.setattr(Execution, "read_logs", kill_rank_1_in_its_call)

        def work() -> None:
            if dist.get_rank() == 1:
                dist.recv(torch.empty(1), 0)
            time.sleep(10)

        error = fails(work)
        assert isinstance(error, RankError)
        assert (error.rank, error.kind) == (1, "SIGKILL")
        assert "out-of-memory" in error.headline
        assert "in recv from rank 0" in error.headline
        assert names_line(error, "dist.recv(torch.empty(1), 0)")

    def test_a_real_time_signal(self) -> None:
        def work() -> None:
            os.kill(os.getpid(), signal.SIGRTMIN + 3)
            time.sleep(10)

        error = fails(work, world_size=1)
        assert isinstance(error, RankError)
        assert "rank 0 was killed by" in error.headline

    def test_an_output_that_cannot_be_pickled(self) -> None:
        def work() -> Any:
            return (number for number in range(3))

        error = fails(work)
        assert isinstance(error, RankError)
        assert "its output can't be sent back" in error.headline

    def test_an_exception_whose_message_raises(self) -> None:
        class SilentError(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no words")

        def work() -> None:
            raise SilentError

        error = fails(work, world_size=1)
        assert isinstance(error, RankError)
        assert error.kind == "SilentError"

    def test_a_failed_assertion_without_a_message(self) -> None:
        def work() -> None:
            step = 3
            assert step == 4

        assert names_line(fails(work, world_size=1), "assert step == 4")


class TestFailuresOfTheMachine:
    """A failure before user code runs is not a RankError, so a grader retries."""

    def test_ranks_that_cannot_start(self) -> None:
        class Elsewhere(OwnHost):
            def process_settings(self) -> dict[str, Any]:
                return super().process_settings() | {"cwd": "/no/such/folder"}

        error = fails_on(RankSet(2, quiet=True, host=Elsewhere()), int)
        assert type(error) is LaunchError
        assert error.headline.startswith("the ranks could not be started: rank ")

    def test_a_machine_too_busy_for_the_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # As if every rank had spent all its time waiting for a processor
        monkeypatch.setattr(clock.Clock, "is_over", lambda *_: False)
        monkeypatch.setattr(clock, "MAX_STRETCH", 2.0)
        ranks = RankSet(2, quiet=True, timeout_s=0.1, trust=Trust.UNTRUSTED)
        error = fails_on(ranks, lambda: time.sleep(20))
        assert isinstance(error, MachineTooBusy)


class TestARankThatForgesItsMessages:
    """A grader runs untrusted code: whatever a rank sends, the worst result is a LaunchError."""

    @pytest.mark.parametrize(
        ("header", "body"),
        [
            ({"is": "finished", "at": 0.0}, b"not plain data"),
            ({"is": "finished"}, b""),
            ({"is": "failed"}, b""),
            ({"is": "failed", "stage": "run", "at": "x", "chain": []}, b""),
            ({"is": "failed", "stage": "run", "at": 0.0, "chain": [{"kind": 3}]}, b""),
            ({"is": "nonsense"}, b""),
            ({}, b""),
        ],
        ids=str,
    )
    def test_headers(self, header: dict[str, Any], body: bytes) -> None:
        def work() -> None:
            import socket

            from shardlab.ranks import messages

            for fd in map(int, os.listdir("/proc/self/fd")):
                try:
                    control = socket.socket(fileno=os.dup(fd))
                except OSError:
                    continue
                if control.family == socket.AF_UNIX and control.type == socket.SOCK_STREAM:
                    messages.send(control, header, body)
            time.sleep(10)

        error = fails_on(RankSet(1, quiet=True), work, results="plain")
        assert not isinstance(error, RunTimeout)

    def test_a_log_of_invalid_events(self) -> None:
        def work() -> int:
            from shardlab.ranks.rank import RECORDER

            for event in (["end"], ["call", []], ["group", 1, 2], ["block"], [[[]]], ["wait", {}]):
                RECORDER.log.write(*event)
            return 7

        with RankSet(1, quiet=True) as ranks:
            assert ranks.run(work, results="plain").outputs == [7]
