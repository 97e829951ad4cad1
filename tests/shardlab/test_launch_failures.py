"""Ranks that fail: the error names the one that was the cause, and its line."""

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
from shardlab.rank_set import RankSet
from shardlab.ranks import clock
from shardlab.ranks.client import OwnHost
from shardlab.ranks.process import RankProcess
from shardlab.ranks.supervise import Supervisor
from shardlab.ranks.trust import Trust
from shardlab.ranks.turn import Turn
from tests.shardlab.failing import fails, fails_on, names_line

pytestmark = pytest.mark.ranks


class TestARankThatFails:
    def test_exception_while_others_wait(self) -> None:
        def work() -> int:
            tensor = torch.ones(4)
            dist.all_reduce(tensor)
            print("so far", flush=True)
            dist.all_reduce(tensor)  # all have printed before the failure ends them
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
        heard = tmp_path / "heard"
        hear = RankProcess.hear

        def hear_and_tell(self: RankProcess, header: dict[str, Any], body: bytes) -> None:
            hear(self, header, body)
            if self.state == "finished":
                heard.touch()

        monkeypatch.setattr(RankProcess, "hear", hear_and_tell)

        def work() -> str:
            if dist.get_rank() == 1:
                while not heard.exists():
                    time.sleep(0.01)
                raise RuntimeError("late")
            return "done"

        error = fails(work)
        assert error.run is not None
        assert error.run.outputs == ["done", None]

    def test_the_cause_is_named_not_its_echo(self) -> None:
        def work() -> None:
            if dist.get_rank() == 3:
                sys.stdout.flush()
                raise KeyError("the cause")
            dist.all_reduce(torch.ones(1_000_000))

        error = fails(work, world_size=4)
        assert isinstance(error, RankError)
        assert (error.rank, error.kind) == (3, "KeyError")

    def test_an_exception_within_an_exception(self) -> None:
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

    def test_os_exit_of_zero_is_a_failure_too(self) -> None:
        def work() -> None:
            if dist.get_rank() == 1:
                os._exit(0)
            dist.barrier()

        error = fails(work)
        assert isinstance(error, RankError)
        assert (error.rank, error.kind) == (1, "exit")
        assert "exited with code 0" in error.headline
        assert names_line(error, "os._exit(0)")

    def test_a_death_that_is_told_late_is_the_cause_all_the_same(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a full machine the server may say it long after another rank has missed the dead."""
        hear = Supervisor._hear_server
        unheard = 60

        def late(self: Supervisor) -> None:
            nonlocal unheard
            if any(process.state == "failed" for process in self.ranks):
                unheard -= 1
            if self.turn is None or unheard <= 0:
                hear(self)
            else:
                time.sleep(0.01)

        monkeypatch.setattr(Supervisor, "_hear_server", late)

        def work() -> None:
            if dist.get_rank() == 1:
                os._exit(3)
            dist.barrier()

        error = fails(work)
        assert unheard <= 0
        assert isinstance(error, RankError)
        assert (error.rank, error.kind) == (1, "exit")

    def test_an_end_of_file_of_the_students_is_an_exception_like_any(self) -> None:
        def work() -> None:
            if dist.get_rank() == 1:
                raise EOFError("my file is short")
            dist.barrier()

        error = fails(work)
        assert isinstance(error, RankError)
        assert (error.rank, error.kind, error.message) == (1, "EOFError", "my file is short")

    def test_a_child_that_exits_is_not_where_its_rank_was_killed(self) -> None:
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

    def test_killed_in_the_middle_of_a_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read_logs = Turn.read_logs

        def kill_whom_the_log_shows_in_a_call(self: Turn) -> None:
            read_logs(self)
            rank_1 = self.ranks[1]
            if self.log.pending[1] and rank_1.state == "running":
                assert rank_1.pid
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank_1.pid, signal.SIGKILL)

        monkeypatch.setattr(Turn, "read_logs", kill_whom_the_log_shows_in_a_call)

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

    def test_an_output_that_cannot_travel(self) -> None:
        def work() -> Any:
            return (number for number in range(3))

        error = fails(work)
        assert isinstance(error, RankError)
        assert "its output can't be sent back" in error.headline

    def test_a_message_that_is_no_text_and_one_that_raises(self) -> None:
        class SilentError(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no words")

        def work() -> None:
            raise SilentError

        error = fails(work, world_size=1)
        assert isinstance(error, RankError)
        assert error.kind == "SilentError"

    def test_a_failed_assertion_without_a_word(self) -> None:
        def work() -> None:
            step = 3
            assert step == 4

        assert names_line(fails(work, world_size=1), "assert step == 4")


class TestTheMachinesDoing:
    """What fails before any code of the user's runs is no RankError: a grader tries again."""

    def test_ranks_that_cannot_start(self) -> None:
        class Elsewhere(OwnHost):
            def surroundings(self) -> dict[str, Any]:
                return super().surroundings() | {"cwd": "/no/such/folder"}

        error = fails_on(RankSet(2, quiet=True, host=Elsewhere()), int)
        assert type(error) is LaunchError
        assert error.headline.startswith("the ranks could not be started: rank ")

    def test_a_machine_too_busy_for_the_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # As if every rank had waited for a processor all the time
        monkeypatch.setattr(clock.Clock, "is_over", lambda *_: False)
        monkeypatch.setattr(clock, "MOST_TIMES", 2.0)
        ranks = RankSet(2, quiet=True, timeout_s=0.1, trust=Trust.UNTRUSTED)
        error = fails_on(ranks, lambda: time.sleep(20))
        assert isinstance(error, MachineTooBusy)


class TestARankThatForgesItsMessages:
    """A grader runs code it does not trust: whatever a rank says, a LaunchError is the worst."""

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

    def test_a_log_full_of_rubbish(self) -> None:
        def work() -> int:
            from shardlab.ranks.rank import RECORDER

            for event in (["end"], ["call", []], ["group", 1, 2], ["block"], [[[]]], ["wait", {}]):
                RECORDER.log.write(*event)
            return 7

        with RankSet(1, quiet=True) as ranks:
            assert ranks.run(work, results="plain").outputs == [7]
