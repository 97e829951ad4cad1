"""Ranks that run several functions, and what only a grader asks of them."""

from __future__ import annotations

import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from shardlab import RankError, measure
from shardlab.rank_set import RankSet
from shardlab.ranks import messages
from shardlab.ranks.process import MOST_LOOKS
from shardlab.ranks.rank import RECORDER
from shardlab.ranks.supervise import Supervisor
from shardlab.ranks.trust import Trust
from shardlab.trace.recorder import pauses_s
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


def test_ranks_that_all_raise_are_told_as_launch_tells_it_and_stay() -> None:
    def fail() -> None:
        raise KeyError("lost")

    with RankSet(2, quiet=True) as ranks:
        pids = ranks.run(pid).outputs
        with pytest.raises(RankError, match="rank 0 failed: KeyError"):
            ranks.run(fail)
        assert ranks.can_go_on
        assert ranks.run(pid).outputs == pids


@pytest.mark.parametrize("how", ["one raises while the other waits", "one exits"])
def test_any_other_failure_ends_the_ranks(how: str) -> None:
    def fail() -> None:
        if dist.get_rank() == 1:
            dist.recv(torch.ones(1), 0)
        elif how == "one exits":
            os._exit(3)
        raise KeyError("lost")

    with RankSet(2, quiet=True) as ranks:
        pids = ranks.run(pid).outputs
        with pytest.raises(RankError, match="rank 0"):
            ranks.run(fail)
        assert not ranks.can_go_on
        assert not [each for each in pids if os.path.exists(f"/proc/{each}")]
        with pytest.raises(ValueError, match="make a new set"):
            ranks.run(pid)


@pytest.mark.parametrize("leave", ["a message", "a group", "an open call"])
def test_what_is_left_behind_in_groups_is_seen(leave: str) -> None:
    def leaves() -> None:
        if leave == "a group":
            dist.new_group([0, 1])
        elif leave == "a message" and dist.get_rank() == 0:
            dist.isend(torch.ones(2), 1)
        elif leave == "an open call":
            dist.all_reduce(torch.ones(2), async_op=True) if dist.get_rank() == 0 else None

    with RankSet(2, quiet=True) as ranks:
        ranks.run(pid)
        assert ranks.can_go_on
        ranks.run(leaves)
        assert not ranks.can_go_on


def test_bytes_by_way_of_a_rank_that_has_no_part_are_not_between_ranks() -> None:
    """Rank 2 was taught in an earlier function to pass on what rank 0 sends it."""

    def teach() -> None:
        import builtins
        import threading

        world = dist.group.WORLD
        builtins.world = world  # type: ignore[attr-defined]
        if dist.get_rank() == 2:

            def pass_on() -> None:
                got = torch.empty(100_000)
                dist.recv(got, 0, group=world)
                dist.send(got, 1, group=world)

            threading.Thread(target=pass_on, daemon=True).start()

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
        ranks.run(teach)
        run = ranks.run(use, world_size=2)
        turn = ranks._last
    assert run.outputs == [1.0, 1.0]
    assert run.traffic.sent_bytes.sum() < 5_000
    assert turn is not None
    assert turn.after is not None
    from shardlab.ranks import meter

    assert meter.strayed_bytes(turn.before, turn.after, 2) >= 800_000


def test_ranks_that_are_ready_before_their_server_says_so_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a full machine the server may be a while in telling their processes' numbers."""
    hear = Supervisor._hear_server
    unheard = 100

    def late(self: Supervisor) -> None:
        nonlocal unheard
        if all(process.state != "starting" for process in self.ranks):
            unheard -= 1
        if unheard > 0:
            time.sleep(0.01)
        else:
            hear(self)

    monkeypatch.setattr(Supervisor, "_hear_server", late)
    with RankSet(4, quiet=True) as ranks:
        run = ranks.run(total_and_draw, seed=5)
    assert "counted by the kernel" in run.traffic.source


def test_a_size_that_was_not_asked_for_is_refused() -> None:
    with RankSet(3, smaller=[2]) as ranks, pytest.raises(ValueError, match="not made for it"):
        ranks.run(pid, world_size=1)


def holds_and_lets_go() -> None:
    with measure("begun"):
        pass
    held = [torch.ones(1 << 18) for _ in range(32)]  # 1 MiB each
    with measure("held"):
        pass
    del held
    with measure("let go"):
        pass


def test_memory_of_untrusted_ranks_is_seen_from_outside_as_well() -> None:
    with RankSet(2, quiet=True, trust=Trust.UNTRUSTED) as ranks:
        memory = ranks.run(holds_and_lets_go, memory=True).memory
    for rank in memory:
        begun, held, let_go = (rank.seen_bytes[label] for label in ("begun", "held", "let go"))
        assert held.least - begun.most == pytest.approx(32 << 20, abs=2 << 20)
        assert let_go.most - begun.least == pytest.approx(0, abs=2 << 20)


def in_a_thread() -> None:
    threads = [threading.Thread(target=holds_and_lets_go) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("fn", [holds_and_lets_go, in_a_thread])
def test_blocks_are_looked_at_in_untrusted_ranks_main_threads_alone(fn: Callable[[], None]) -> None:
    trust = Trust.UNTRUSTED if fn is in_a_thread else Trust.OWN
    with RankSet(1, quiet=True, trust=trust) as ranks:
        memory = ranks.run(fn, memory=True).memory
    assert not memory[0].seen_bytes
    assert memory[0].is_told


def asks_and_never_reads() -> str:
    look = RECORDER.look
    known = [cell.cell_contents for cell in look.__closure__ or ()]
    kernel = next(each for each in known if isinstance(each, socket.socket))
    for i in range(20 * MOST_LOOKS):
        messages.send(kernel, {"is": "look", "label": str(i)})
    return "done"


@pytest.mark.timeout(60)
def test_a_rank_that_asks_to_be_looked_at_for_ever_holds_nobody_up() -> None:
    with RankSet(1, quiet=True, trust=Trust.UNTRUSTED) as ranks:
        run = ranks.run(asks_and_never_reads, memory=True)
    assert run.outputs == ["done"]
    assert not run.memory[0].seen_bytes  # of a part of its blocks nothing is told


class TestPlainResults:
    def test_data_comes_back(self) -> None:
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

    def test_another_word_is_refused(self) -> None:
        with RankSet(1) as ranks, pytest.raises(ValueError, match=r"results is .any. or .plain."):
            ranks.run(int, results="json")


def sends_and_seed() -> int:
    for _ in range(20):
        if dist.get_rank() == 0:
            dist.send(torch.ones(1), 1)
        else:
            dist.recv(torch.ones(1), 0)
    return torch.initial_seed()


def test_shaken_ranks_pause_at_moments_that_the_seed_draws() -> None:
    with RankSet(2, quiet=True) as ranks:
        run = ranks.run(sends_and_seed, shaken=True)
    paused_s = pauses_s(run.outputs[0])
    starts_s = [call.start_s for call in run.calls if call.rank == 0]
    assert 0 < sum(paused_s[1:20]) <= starts_s[-1] - starts_s[0]
    assert run.outputs[0] != run.outputs[1]
    assert paused_s != pauses_s(run.outputs[1])
