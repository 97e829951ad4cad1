"""Runs that cannot continue, and slow runs that can.

A hang must raise DeadlockError, well before timeout_s would turn it into a RunTimeout.  The tests
check the type of the error, not the time.
"""

from __future__ import annotations

import threading
import time

import pytest
import torch
import torch.distributed as dist

from shardlab import DeadlockError, RunTimeout, launch
from shardlab.ranks.client import Channel
from tests.shardlab.failing import fails, names_line

pytestmark = pytest.mark.ranks


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

    def test_waiting_for_asynchronous_receives(self) -> None:
        def work() -> None:
            rank = dist.get_rank()
            received = dist.irecv(torch.empty(4), 1 - rank)
            assert received is not None
            received.wait()

        error = fails(work)
        assert isinstance(error, DeadlockError)
        assert error.cycle == (0, 1)

    def test_an_exception_that_a_finally_hides(self) -> None:
        def work() -> None:
            for step in range(3):
                try:
                    if dist.get_rank() == 1 and step == 1:
                        raise IndexError("label 1000 is out of range")
                    dist.all_reduce(torch.ones(4))
                finally:
                    if step:
                        dist.barrier()

        error = fails(work, world_size=3)
        assert isinstance(error, DeadlockError)
        assert "rank 1 raised IndexError: label 1000 is out of range" in error.headline
        assert "while handling it called barrier" in error.headline
        assert names_line(error, 'raise IndexError("label 1000 is out of range")')

    def test_in_a_loop_no_rank_is_said_to_be_behind(self) -> None:
        def work() -> None:
            for step in range(4):
                dist.all_reduce(torch.ones(8))
                if dist.get_rank() == 0 and step == 1:
                    dist.all_reduce(torch.ones(1))

        error = fails(work, world_size=3)
        assert isinstance(error, DeadlockError)
        assert "collective 3 is line" in error.headline
        assert "on rank 0, but line" in error.headline
        assert "on ranks 1 and 2" in error.headline
        assert "still" not in error.headline

    def test_numbers_of_collectives_that_depend_on_data(self) -> None:
        def work() -> None:
            for _ in range(3 + (dist.get_rank() == 1)):
                dist.all_reduce(torch.ones(4))

        error = fails(work, world_size=3)
        assert "Rank 1 has made 4 collectives; ranks 0 and 2 have made 3." in error.detail

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

    def test_a_receive_without_a_send(self) -> None:
        def work() -> None:
            if dist.get_rank() == 0:
                dist.recv(torch.empty(1))

        error = fails(work)
        assert isinstance(error, DeadlockError)
        assert error.headline.startswith("rank 1 ")
        assert names_line(error, "dist.recv(torch.empty(1))")

    def test_a_ddp_backward_pass_that_one_rank_skips(self) -> None:
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
            "rank 1 called broadcast, but ranks 0 and 2 called all_reduce"
        )
        assert names_line(error, "dist.broadcast(tensor, 0)")

    def test_different_shapes(self) -> None:
        def work() -> None:
            dist.all_reduce(torch.ones(4 + (dist.get_rank() == 2)))

        error = fails(work, world_size=4)
        assert isinstance(error, DeadlockError)
        assert error.headline.startswith(
            "rank 2 passed float32[5] to all_reduce, but ranks 0, 1 and 3 passed float32[4]"
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
            "rank 1 receives into float32[4], but rank 0 sends float32[8]"
        )
        assert names_line(error, "dist.recv(torch.empty(4), 0)")

    def test_a_root_that_differs(self) -> None:
        def work() -> None:
            dist.broadcast(torch.ones(3), src=dist.get_rank())

        error = fails(work)
        assert isinstance(error, DeadlockError)
        assert "rank 1 called broadcast with src=1, but rank 0 with src=0" in error.headline
        assert names_line(error, "dist.broadcast(torch.ones(3), src=dist.get_rank())")

    def test_a_reduction_that_differs_is_an_error_though_nothing_hangs(self) -> None:
        def work() -> None:
            op = dist.ReduceOp.MAX if dist.get_rank() else dist.ReduceOp.SUM
            dist.all_reduce(torch.ones(3), op=op)

        error = fails(work)
        assert isinstance(error, DeadlockError)
        assert "rank 1 called all_reduce with op=MAX, but rank 0 with op=SUM" in error.headline

    @pytest.mark.parametrize("members_only", [False, True])
    def test_groups_that_ranks_make_differently(self, members_only: bool) -> None:
        def work() -> None:
            low = dist.get_rank() < 2
            if low or not members_only:
                group = dist.new_group([0, 1] if low else [2, 3])
                dist.all_reduce(torch.ones(1), group=group)
            dist.new_group([0, 1, 2, 3])

        error = fails(work, world_size=4)
        assert isinstance(error, DeadlockError)
        others = "[0, 1, 2, 3]" if members_only else "[2, 3]"
        assert error.headline.startswith(
            f"call 1 of new_group: ranks 0 and 1 named [0, 1], ranks 2 and 3 named {others}"
        )

    def test_what_went_well_by_luck_is_reported(self, capsys: pytest.CaptureFixture[str]) -> None:
        def work() -> None:
            if dist.get_rank() < 2:
                dist.new_group([0, 1])
            dist.all_reduce(torch.ones(1), async_op=True)
            dist.barrier()

        launch(work, world_size=3)
        groups, unwaited = capsys.readouterr().err.splitlines()
        assert groups.startswith("only ranks 0 and 1 made the group [0, 1]: every rank must")
        assert "dist.new_group([0, 1])" in groups
        assert unwaited.startswith("each of ranks 0, 1 and 2 starts all_reduce with async_op=True")
        assert "dist.all_reduce(torch.ones(1), async_op=True)" in unwaited

    def test_a_loop_that_one_rank_leaves_earlier(self) -> None:
        def work() -> None:
            for _ in range(3 - dist.get_rank()):
                dist.all_reduce(torch.ones(3))
            dist.all_reduce(torch.ones(1))

        error = fails(work)
        assert error.headline.startswith("rank 1 has gone on to line ")
        assert "while rank 0 is still at line" in error.headline

    def test_one_group_of_a_mesh_with_local_synchronization(self) -> None:
        """Only its members make it."""

        def work() -> float:
            total = torch.ones(1)
            if dist.get_rank() < 2:
                pair = dist.new_group([0, 1], use_local_synchronization=True)
                dist.all_reduce(total, group=pair)
            return total.item()

        assert launch(work, world_size=3, quiet=True).outputs == [2.0, 2.0, 1.0]


class TestTimeout:
    @pytest.mark.parametrize("kind", ["store", "queue", "lock"])
    def test_a_rank_that_is_blocked_is_not_computing(self, kind: str) -> None:
        def work() -> None:
            if dist.get_rank() == 1:
                import queue
                import threading

                if kind == "store":
                    dist.distributed_c10d._get_default_store().get("nobody sets this")
                elif kind == "queue":
                    queue.Queue[int]().get()
                else:
                    threading.Semaphore(0).acquire()
            dist.barrier()

        error = fails(work, timeout_s=2)
        assert isinstance(error, RunTimeout)
        assert "rank 1 is blocked" in error.headline
        assert [row.state for row in error.table] == ["waiting", "blocked"]
        assert "larger" not in error.detail

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
        assert "test_launch_hangs.py, line " in error.headline
        assert [row.state for row in error.table] == ["waiting", "computing"]
        assert "barrier" in error.table[0].call

    def test_a_rank_that_prints_all_the_time_is_computing(self) -> None:
        def work() -> None:
            while True:
                print("again")

        error = fails(work, world_size=1, timeout_s=1)
        assert isinstance(error, RunTimeout)
        assert [row.state for row in error.table] == ["computing"]

    def test_a_timeout_waits_for_a_stack_that_is_written_late(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Many busy ranks on few processors write their stacks only when they are scheduled."""
        request = Channel.request_stacks

        def request_late(self: Channel) -> None:
            threading.Timer(0.7, request, [self]).start()

        monkeypatch.setattr(Channel, "request_stacks", request_late)

        def work() -> None:
            while True:
                pass

        error = fails(work, timeout_s=0.1)
        assert "test_launch_hangs.py, line " in error.headline


class TestSlowRuns:
    """None of these is a deadlock, however long ranks wait; each lasts several BLOCKED_S."""

    def test_sleeping_and_spinning_while_others_wait(self) -> None:
        def work() -> float:
            rank = dist.get_rank()
            pending = None
            buffer = torch.zeros(1)
            if rank == 0:
                pending = dist.irecv(buffer, 1)  # stays open while rank 0 sleeps
                time.sleep(3)
            if rank == 1:
                deadline = time.monotonic() + 3
                while time.monotonic() < deadline:
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

    def test_receives_from_any_rank_and_from_a_given_rank(self) -> None:
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
