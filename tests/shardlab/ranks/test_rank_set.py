"""Ranks that run several functions, and the options that a grader uses."""

from __future__ import annotations

import logging
import os
import random
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from shardlab import RankError, measure
from shardlab.ranks import messages
from shardlab.ranks.process import MAX_READINGS
from shardlab.ranks.rank import RECORDER
from shardlab.ranks.rank_set import RankSet
from shardlab.ranks.supervise import Supervisor
from shardlab.ranks.trust import Trust
from tests.shardlab.failing import fails_on

pytestmark = pytest.mark.ranks


def total_and_draw() -> tuple[float, float, float]:
    mine = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(mine)
    return mine.item(), torch.rand(1).item(), random.random()


def pid() -> int:
    print("from", dist.get_rank())
    return os.getpid()


def test_functions_run_on_the_same_processes_in_groups_of_several_sizes() -> None:
    with RankSet(4, smaller=[2, 3], quiet=True) as ranks:
        assert ranks.is_fresh
        seen = [ranks.run(pid, world_size=size) for size in (4, 2, 3)]
        assert not ranks.is_fresh
        assert [run.outputs for run in seen[1:]] == [seen[0].outputs[:2], seen[0].outputs[:3]]
        assert [run.stdout for run in seen[1:]] == [seen[0].stdout[:2], seen[0].stdout[:3]]
        sums = [ranks.run(total_and_draw, world_size=size).outputs for size in (2, 4, 3)]
        assert [[each[0] for each in outputs] for outputs in sums] == [
            [3.0] * 2,
            [10.0] * 4,
            [6.0] * 3,
        ]


def test_each_function_has_its_own_seed_bytes_and_calls() -> None:
    with RankSet(3, smaller=[2], quiet=True) as ranks:
        first, other, again = (
            ranks.run(total_and_draw, world_size=size, seed=seed)
            for size, seed in ((2, 5), (3, 6), (2, 5))
        )
    assert first.outputs == again.outputs != other.outputs[:2]
    assert first.traffic.sent_bytes.tolist() == again.traffic.sent_bytes.tolist()
    for run, size in ((first, 2), (other, 3), (again, 2)):
        assert run.traffic.sent_bytes.shape == (size, size)
        assert [call.group for call in run.calls] == [tuple(range(size))] * size
        assert all(call.end_s is not None and call.start_s >= 0 for call in run.calls)


def test_if_all_ranks_raise_the_error_is_that_of_launch_and_the_ranks_survive() -> None:
    def fail() -> None:
        raise KeyError("lost")

    with RankSet(2, quiet=True) as ranks:
        pids = ranks.run(pid).outputs
        with pytest.raises(RankError, match="rank 0 failed: KeyError"):
            ranks.run(fail)
        assert ranks.is_reusable
        assert ranks.run(pid).outputs == pids


@pytest.mark.parametrize("failure", ["one raises while the other waits", "one exits"])
def test_any_other_failure_ends_the_ranks(failure: str) -> None:
    def fail() -> None:
        if dist.get_rank() == 1:
            dist.recv(torch.ones(1), 0)
        elif failure == "one exits":
            os._exit(3)
        raise KeyError("lost")

    with RankSet(2, quiet=True) as ranks:
        pids = ranks.run(pid).outputs
        with pytest.raises(RankError, match="rank 0"):
            ranks.run(fail)
        assert not ranks.is_reusable
        assert not [each for each in pids if os.path.exists(f"/proc/{each}")]
        with pytest.raises(ValueError, match="create a new RankSet"):
            ranks.run(pid)


@pytest.mark.parametrize("leave", ["a message", "a group", "an open call"])
def test_state_left_in_groups_is_detected(leave: str) -> None:
    def leave_state() -> None:
        if leave == "a group":
            dist.new_group([0, 1])
        elif leave == "a message" and dist.get_rank() == 0:
            dist.isend(torch.ones(2), 1)
        elif leave == "an open call":
            dist.all_reduce(torch.ones(2), async_op=True) if dist.get_rank() == 0 else None

    with RankSet(2, quiet=True) as ranks:
        ranks.run(pid)
        assert ranks.is_reusable
        ranks.run(leave_state)
        assert not ranks.is_reusable


def test_bytes_through_a_rank_outside_the_group_are_not_counted_between_ranks() -> None:
    """An earlier function left a thread on rank 2 that forwards data from rank 0 to rank 1."""

    def start_forwarding() -> None:
        import builtins
        import threading

        world = dist.group.WORLD
        builtins.world = world  # type: ignore[attr-defined]
        if dist.get_rank() == 2:

            def forward() -> None:
                got = torch.empty(100_000)
                dist.recv(got, 0, group=world)
                dist.send(got, 1, group=world)

            threading.Thread(target=forward, daemon=True).start()

    def use() -> float:
        import builtins

        world = builtins.world  # type: ignore[attr-defined]
        if dist.get_rank() == 0:
            dist.send(torch.ones(100_000), 2, group=world)
            return 1.0
        got = torch.empty(100_000)
        dist.recv(got, 2, group=world)
        return got.mean().item()

    with RankSet(3, smaller=[2], quiet=True) as ranks:
        ranks.run(start_forwarding)
        run = ranks.run(use, world_size=2)
        execution = ranks._last
    assert run.outputs == [1.0, 1.0]
    assert run.traffic.sent_bytes.sum() < 5_000
    assert execution is not None
    assert execution.after is not None
    from shardlab.ranks import meter

    assert meter.stray_bytes(execution.before, execution.after, 2) >= 800_000


def test_ranks_that_are_ready_before_their_pid_is_reported_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine the server may report pids late."""
    read_server = Supervisor._read_server
    delayed = 100

    def read_late(self: Supervisor) -> None:
        nonlocal delayed
        if all(process.state != "starting" for process in self.ranks):
            delayed -= 1
        if delayed > 0:
            time.sleep(0.01)
        else:
            read_server(self)

    monkeypatch.setattr(Supervisor, "_read_server", read_late)
    with RankSet(4, quiet=True) as ranks:
        run = ranks.run(total_and_draw, seed=5)
    assert "counted by the operating system" in run.traffic.source


def test_a_library_that_a_program_names_is_imported_before_ranks_are_forked() -> None:
    def is_loaded() -> bool:
        import sys

        return "accelerate" in sys.modules

    with RankSet(2, device="cpu", engine="torch") as ranks:
        assert ranks.run(is_loaded).outputs == [True, True]


def test_a_world_size_that_was_not_requested_raises() -> None:
    with RankSet(3, smaller=[2]) as ranks, pytest.raises(ValueError, match="has only sizes"):
        ranks.run(pid, world_size=1)


def scheduling_policies() -> set[int]:
    dist.all_reduce(torch.ones(1), group=dist.new_group())
    return {os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")}


def test_no_thread_of_a_rank_preempts_another_when_it_wakes_up() -> None:
    with RankSet(2, quiet=True) as ranks:
        assert ranks.run(scheduling_policies).outputs == [{os.SCHED_BATCH}] * 2
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def allocates_and_frees() -> None:
    with measure("begun"):
        pass
    held = [torch.ones(1 << 18) for _ in range(32)]  # 1 MiB each
    with measure("held"):
        pass
    del held
    with measure("freed"):
        pass


def test_memory_of_untrusted_ranks_is_also_measured_from_outside() -> None:
    """Within 4 MiB, as exercises expect: a rank may use memory that its parent had freed."""
    with RankSet(2, quiet=True, trust=Trust.UNTRUSTED) as ranks:
        memory = ranks.run(allocates_and_frees, memory=True, process_memory=True).memory
    for rank in memory:
        begun, held, freed = (rank.process_bytes[label] for label in ("begun", "held", "freed"))
        assert held.least - begun.most == pytest.approx(32 << 20, abs=4 << 20)
        assert freed.most - begun.least == pytest.approx(0, abs=4 << 20)


def test_the_parent_process_of_measured_ranks_has_imported_what_they_may_use() -> None:
    """torch.func.vjp imports torch._dynamo on first use: 80 MB in the rank's process."""
    with RankSet(1, quiet=True, trust=Trust.UNTRUSTED) as ranks:
        run = ranks.run(lambda: "torch._dynamo" in sys.modules, memory=True, process_memory=True)
    assert run.outputs == [True]


def another_thread_works_after_a_block() -> bool:
    deadline = time.monotonic() + 0.1
    thread = threading.Thread(target=lambda: all(time.monotonic() < deadline for _ in count()))
    thread.start()
    with measure("block"):
        pass
    return thread.is_alive()


@pytest.mark.parametrize("trust", Trust)
def test_a_block_of_a_run_with_memory_waits_for_other_threads(trust: Trust) -> None:
    """Gloo's threads may hold a collective's tensors a little longer than the block."""
    with RankSet(1, quiet=True, trust=trust) as ranks:
        run = ranks.run(another_thread_works_after_a_block, memory=True, seed=1)
    assert run.outputs == [False]


def in_a_thread() -> None:
    threads = [threading.Thread(target=allocates_and_frees) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("fn", [allocates_and_frees, in_a_thread])
def test_memory_is_read_from_outside_only_for_the_main_thread_of_untrusted_ranks(
    fn: Callable[[], None],
) -> None:
    trust = Trust.UNTRUSTED if fn is in_a_thread else Trust.OWN
    with RankSet(1, quiet=True, trust=trust) as ranks:
        memory = ranks.run(fn, memory=True, process_memory=True).memory
    assert not memory[0].process_bytes
    assert memory[0].is_recorded


def sends_requests_and_never_reads() -> str:
    closure = RECORDER.await_measurement.__closure__ or ()
    known = [cell.cell_contents for cell in closure]
    kernel = next(each for each in known if isinstance(each, socket.socket))
    for i in range(20 * MAX_READINGS):
        messages.send(kernel, {"is": "measure", "label": str(i)})
    return "done"


@pytest.mark.timeout(60)
def test_endless_requests_for_memory_readings_do_not_block_the_run() -> None:
    with RankSet(1, quiet=True, trust=Trust.UNTRUSTED) as ranks:
        run = ranks.run(sends_requests_and_never_reads, memory=True, process_memory=True)
    assert run.outputs == ["done"]
    assert not run.memory[0].process_bytes  # an incomplete record is discarded


class TestPlainResults:
    def test_plain_data_is_returned(self) -> None:
        def output() -> Any:
            return {"x": torch.arange(3), "y": [np.ones(2), (1, None, "é", b"\0")]}

        with RankSet(1, quiet=True) as ranks:
            (found,) = ranks.run(output, results="plain").outputs
        assert found["x"].tolist() == [0, 1, 2]
        assert found["y"][0].tolist() == [1.0, 1.0]
        assert found["y"][1] == (1, None, "é", b"\0")

    def test_anything_else_is_an_error_that_names_the_type(self) -> None:
        def output() -> Any:
            return torch.nn.Linear(1, 1) if dist.get_rank() == 1 else 0

        error = fails_on(RankSet(2, quiet=True), output, results="plain")
        assert isinstance(error, RankError)
        assert error.rank == 1
        assert re.match("rank 1 failed: its output.*Linear", error.headline)

    def test_an_unknown_value_of_results_raises(self) -> None:
        with RankSet(1) as ranks, pytest.raises(ValueError, match=r"results is .any. or .plain."):
            ranks.run(int, results="json")


def three_barriers() -> list[int]:
    """How often this rank has paused so far: at its start, and after each of its calls."""
    pauses = [RECORDER.pauses]
    for _ in range(3):
        dist.barrier()
        pauses.append(RECORDER.pauses)
    return pauses


def test_only_a_delayed_rank_pauses_at_its_start_and_around_each_call() -> None:
    with RankSet(2, quiet=True) as ranks:
        for delayed in (0, 1):
            delay_s = [0.0, 0.0]
            delay_s[delayed] = 0.05
            run = ranks.run(three_barriers, delay_s=delay_s)
            pauses = run.outputs[delayed]
            assert pauses[0] == 1
            assert all(before < after for before, after in pairwise(pauses))
            assert run.outputs[1 - delayed] == [0, 0, 0, 0]
            starts_s = [call.start_s for call in run.calls if call.rank == delayed]
            assert all(later - earlier >= 0.05 for earlier, later in pairwise(starts_s))


def test_the_parent_process_is_prepared_once_for_all_ranks() -> None:
    with RankSet(3, quiet=True, prepare=("logging:addLevelName", "41", "prepared")) as ranks:
        outputs = ranks.run(lambda: logging.getLevelName("41")).outputs
    assert outputs == ["prepared"] * 3


def test_ranks_start_even_if_nothing_can_be_prepared() -> None:
    with RankSet(2, quiet=True, prepare=("logging:no_such_function",)) as ranks:
        assert ranks.run(lambda: 1).outputs == [1, 1]
