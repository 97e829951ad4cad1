"""Every way a run can fail ends soon, with an error whose first line names rank and line.

A hang must come as DeadlockError, well before timeout_s would make it a RunTimeout: the type of
the error tells, no clock is looked at.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from shardlab import DeadlockError, LaunchError, RankError, RunTimeout, launch
from shardlab.errors import MachineTooBusy
from shardlab.ranks.client import OwnHost
from shardlab.ranks.clock import Clock
from shardlab.ranks.judge import Judge
from shardlab.ranks.process import RankProcess

pytestmark = pytest.mark.ranks
HERE = os.path.basename(__file__)


def fails(
    fn: Callable[..., Any], world_size: int = 2, timeout_s: float = 20, **how: Any
) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        launch(fn, world_size=world_size, timeout_s=timeout_s, quiet=True, **how)
    error = caught.value
    assert "\n" not in error.headline
    assert str(error).splitlines()[0] == error.headline
    assert error.run is not None
    return error


def names_line(error: LaunchError, code: str) -> bool:
    """Whether the first line holds this file's name and the text of the line at fault."""
    return f"{HERE}, line " in error.headline and code in error.headline


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
        read_logs = Judge.read_logs

        def kill_whom_the_log_shows_in_a_call(self: Judge) -> None:
            read_logs(self)
            rank_1 = self.ranks[1]
            if self.log.pending[1] and rank_1.state == "running":
                assert rank_1.pid
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank_1.pid, signal.SIGKILL)

        monkeypatch.setattr(Judge, "read_logs", kill_whom_the_log_shows_in_a_call)

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


class TestHangs:
    def test_both_send_first(self) -> None:
        def work() -> None:
            rank = dist.get_rank()
            tensor = torch.ones(4)
            dist.send(tensor, 1 - rank)
            dist.recv(tensor, 1 - rank)

        error = fails(work)
        assert isinstance(error, DeadlockError)
        assert error.cycle == (0, 1)
        assert "0 → 1 → 0 all wait in send" in error.headline
        assert names_line(error, "dist.send(tensor, 1 - rank)")
        assert [row.call for row in error.table] == ["send to rank 1", "send to rank 0"]
        assert error.run is not None
        assert [call.end_s for call in error.run.calls] == [None, None]

    def test_a_ring_that_receives_first(self) -> None:
        def work() -> None:
            rank, size = dist.get_rank(), dist.get_world_size()
            tensor = torch.ones(4)
            dist.recv(tensor, (rank - 1) % size)
            dist.send(tensor, (rank + 1) % size)

        error = fails(work, world_size=3)
        assert isinstance(error, DeadlockError)
        assert error.cycle == (0, 2, 1)
        assert "all wait in recv" in error.headline
        assert names_line(error, "dist.recv(tensor, (rank - 1) % size)")

    def test_asynchronous_ones_that_are_waited_for(self) -> None:
        def work() -> None:
            rank = dist.get_rank()
            received = dist.irecv(torch.empty(4), 1 - rank)
            assert received is not None
            received.wait()

        error = fails(work)
        assert isinstance(error, DeadlockError)
        assert error.cycle == (0, 1)

    def test_a_rank_that_never_enters(self) -> None:
        def work() -> None:
            tensor = torch.ones(4)
            dist.all_reduce(tensor)
            if dist.get_rank() != 2:
                dist.all_reduce(tensor)

        error = fails(work, world_size=4)
        assert isinstance(error, DeadlockError)
        assert error.cycle == ()
        assert error.headline.startswith("rank 2 ")
        assert "without entering all_reduce" in error.headline
        assert "ranks 0, 1 and 3 wait" in error.headline
        assert names_line(error, "dist.all_reduce(tensor)")
        assert [row.state for row in error.table] == ["waiting", "waiting", "finished", "waiting"]

    def test_a_receive_that_nobody_sends(self) -> None:
        def work() -> None:
            if dist.get_rank() == 0:
                dist.recv(torch.empty(1))

        error = fails(work)
        assert isinstance(error, DeadlockError)
        assert error.headline.startswith("rank 1 ")
        assert names_line(error, "dist.recv(torch.empty(1))")

    def test_a_backward_pass_of_ddp_that_one_rank_skips(self) -> None:
        def work() -> None:
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
            loss = model(torch.ones(2, 4)).sum()
            if dist.get_rank() == 0:
                loss.backward()

        error = fails(work)
        assert isinstance(error, DeadlockError)
        assert error.headline.startswith("rank 1 ")
        assert "all_reduce" in error.headline
        assert names_line(error, "loss.backward()")

    def test_a_subgroup_that_one_member_does_not_enter(self) -> None:
        def work() -> None:
            low = dist.new_group([0, 1])
            if dist.get_rank() == 0:
                dist.broadcast(torch.ones(4), 0, group=low)

        error = fails(work, world_size=3)
        assert isinstance(error, DeadlockError)
        assert error.headline.startswith("rank 1 ")
        assert "broadcast" in error.headline


class TestMismatches:
    def test_different_collectives(self) -> None:
        def work() -> None:
            tensor = torch.ones(4)
            if dist.get_rank() == 1:
                dist.broadcast(tensor, 0)
            else:
                dist.all_reduce(tensor)

        error = fails(work, world_size=3)
        assert isinstance(error, DeadlockError)
        assert error.headline.startswith(
            "rank 1 called broadcast where ranks 0 and 2 called all_reduce"
        )
        assert names_line(error, "dist.broadcast(tensor, 0)")

    def test_different_shapes(self) -> None:
        def work() -> None:
            dist.all_reduce(torch.ones(4 + (dist.get_rank() == 2)))

        error = fails(work, world_size=4)
        assert isinstance(error, DeadlockError)
        assert error.headline.startswith(
            "rank 2 gave all_reduce float32[5] where ranks 0, 1 and 3 gave float32[4]"
        )
        assert names_line(error, "dist.all_reduce(torch.ones(4 + (dist.get_rank() == 2)))")

    def test_a_receive_buffer_too_small(self) -> None:
        def work() -> None:
            if dist.get_rank() == 0:
                dist.send(torch.ones(8), 1)
            else:
                dist.recv(torch.empty(4), 0)

        error = fails(work)
        assert isinstance(error, DeadlockError)
        assert error.headline.startswith(
            "rank 1 receives into float32[4] what rank 0 sends as float32[8]"
        )
        assert names_line(error, "dist.recv(torch.empty(4), 0)")


class TestTheMachinesDoing:
    """What fails before any code of the user's runs is no RankError: a grader tries again."""

    def test_ranks_that_cannot_start(self) -> None:
        class Elsewhere(OwnHost):
            def surroundings(self) -> dict[str, Any]:
                return super().surroundings() | {"cwd": "/no/such/folder"}

        error = fails(int, host=Elsewhere())
        assert type(error) is LaunchError
        assert error.headline.startswith("the ranks could not be started: rank ")

    def test_a_machine_too_busy_for_the_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # As if every rank had waited for a processor all the time
        monkeypatch.setattr(Clock, "is_over", lambda *_: False)
        error = fails(lambda: time.sleep(20), timeout_s=0.1, patience=2)
        assert isinstance(error, MachineTooBusy)


class TestTimeout:
    def test_an_endless_loop_is_named_with_its_line(self) -> None:
        def work() -> None:
            if dist.get_rank() == 1:
                while True:
                    pass
            dist.barrier()

        error = fails(work, timeout_s=2)
        assert isinstance(error, RunTimeout)
        assert "timeout_s=2" in error.headline
        assert "rank 1 is still computing" in error.headline
        assert f"{HERE}, line " in error.headline
        assert [row.state for row in error.table] == ["waiting", "computing"]
        assert "barrier" in error.table[0].call


class TestSlowButHonest:
    """None of these is a deadlock, however long the others wait; each lasts several STILL_S."""

    def test_sleeping_and_spinning_while_others_wait(self) -> None:
        def work() -> float:
            rank = dist.get_rank()
            pending = None
            buffer = torch.zeros(1)
            if rank == 0:
                pending = dist.irecv(buffer, 1)  # open all the time that rank 0 sleeps
                time.sleep(3)
            if rank == 1:
                until = time.monotonic() + 3
                while time.monotonic() < until:
                    pass
                dist.send(torch.ones(1), 0)
            if pending is not None:
                pending.wait()
            total = torch.ones(1)
            dist.all_reduce(total)
            return total.item() + buffer.item()

        run = launch(work, world_size=4, timeout_s=20, quiet=True)
        assert run.outputs == [5.0, 4.0, 4.0, 4.0]

    def test_waiting_for_a_thread_with_a_receive_open(self) -> None:
        def work() -> float:
            from threading import Thread

            buffer = torch.zeros(1)
            if dist.get_rank() == 0:
                dist.recv(buffer, 1)
                dist.send(buffer, 1)
            else:
                answer = dist.irecv(buffer, 0)
                loader = Thread(target=time.sleep, args=(3,))
                loader.start()
                loader.join()
                dist.send(torch.ones(1), 0)
                assert answer is not None
                answer.wait()
            return buffer.item()

        assert launch(work, world_size=2, timeout_s=20, quiet=True).outputs == [1.0, 1.0]

    def test_a_call_in_a_thread_while_the_main_thread_sleeps(self) -> None:
        def work() -> float:
            from threading import Thread

            buffer = torch.zeros(1)
            if dist.get_rank() == 0:
                dist.recv(buffer, 1)
                dist.send(buffer, 1)
            else:
                receiver = Thread(target=dist.recv, args=(buffer, 0))
                receiver.start()
                time.sleep(3)
                dist.send(torch.ones(1), 0)
                receiver.join()
            return buffer.item()

        assert launch(work, world_size=2, timeout_s=20, quiet=True).outputs == [1.0, 1.0]

    def test_receives_from_any_rank_beside_ones_from_a_certain_rank(self) -> None:
        def work() -> list[float]:
            if dist.get_rank() == 0:
                dist.send(torch.ones(2), 1)
                dist.send(torch.full((5,), 2.0), 1)
                return []
            first, second = torch.empty(2), torch.empty(5)
            dist.recv(first)
            dist.recv(second, 0)
            return [first[0].item(), second[0].item()]

        assert launch(work, world_size=2, timeout_s=20, quiet=True).outputs[1] == [1.0, 2.0]


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

        error = fails(work, world_size=1, results="plain")
        assert not isinstance(error, RunTimeout)

    def test_a_log_full_of_rubbish(self) -> None:
        def work() -> int:
            from shardlab.ranks.rank import RECORDER

            for event in (["end"], ["call", []], ["group", 1, 2], ["block"], [[[]]], ["wait", {}]):
                RECORDER.log.write(*event)
            return 7

        assert launch(work, world_size=1, quiet=True, results="plain").outputs == [7]
