"""The first line of every hang names a rank and a line of code."""

from __future__ import annotations

import queue
from collections.abc import Collection

import pytest

from shardlab.errors import DeadlockError, RunTimeout
from shardlab.ranks import explain_hang
from shardlab.ranks.deadlock import stuck
from tests.shardlab.scripted_ranks import FILE, ScriptedRanks


def hang(ranks: ScriptedRanks) -> DeadlockError:
    views = ranks.views()
    error = explain_hang.deadlock_error(stuck(views, ranks.log.groups), views, ranks.log)
    assert "\n" not in error.headline
    assert str(error).startswith(error.headline)
    return error


def mismatch(ranks: ScriptedRanks, over: Collection[int] = ()) -> DeadlockError:
    assert ranks.log.mismatch is not None
    return explain_hang.mismatch_error(ranks.log.mismatch, ranks.log, over)


class TestNodes:
    """Two ranks on each of two nodes."""

    @pytest.fixture
    def ranks(self) -> ScriptedRanks:
        ranks = ScriptedRanks(4)
        ranks.log.nodes = (0, 0, 1, 1)
        return ranks

    def test_a_peer_that_finished(self, ranks: ScriptedRanks) -> None:
        ranks.call(1, "recv", 2, line=3)
        ranks.finish(0, 2, 3)
        error = hang(ranks)
        what = "finished without sending to rank 1 on node 0, which waits in recv"
        assert error.headline.startswith(f"rank 2 on node 1 {what}")

    def test_each_row_names_the_nodes(self, ranks: ScriptedRanks) -> None:
        ranks.call(3, "recv", 0)
        ranks.finish(0, 1, 2)
        row = hang(ranks).detail.splitlines()[3]
        assert row.startswith(
            "  rank 3   on node 1   waiting in recv from rank 0, for rank 0 on node"
        )

    def test_an_unplugged_node(self, ranks: ScriptedRanks) -> None:
        for rank in range(4):
            ranks.call(rank, "all_reduce", line=5)
        views, unplugged = ranks.views(), {2, 3}
        waits = stuck(views, ranks.log.groups, unplugged)
        error = explain_hang.deadlock_error(waits, views, ranks.log, unplugged)
        assert error.headline == (
            "node 1 is unplugged: ranks 0 and 1 on node 0 wait for ranks 2 and 3 on node 1 in "
            f"all_reduce (collective 1 of its group)  [{FILE}, line 5]"
        )
        assert error.table[3].waits_for == (0, 1)

    def test_ranks_that_differ(self, ranks: ScriptedRanks) -> None:
        for rank in range(4):
            ranks.call(rank, "all_reduce" if rank != 3 else "barrier")
        headline = mismatch(ranks).headline
        others = "ranks 0 and 1 on node 0 and rank 2 on node 1"
        assert f"rank 3 on node 1 called barrier, but {others} called all_reduce" in headline


class TestHangs:
    @pytest.mark.parametrize(("op", "missing"), [("send", "receive"), ("recv", "send")])
    def test_ranks_that_wait_for_each_other(self, op: str, missing: str) -> None:
        ranks = ScriptedRanks(2)
        ranks.call(0, op, 1, line=7)
        ranks.call(1, op, 0, line=9)
        error = hang(ranks)
        assert "0 → 1 → 0" in error.headline
        assert f"all wait in {op}" in error.headline
        assert f"needs the next one to {missing}" in error.headline
        assert f"{FILE}, line 7" in error.headline
        assert f"{FILE}, line 9" in error.headline
        assert error.cycle == (0, 1)

    def test_each_line_of_a_shared_function_is_named_once(self) -> None:
        ranks = ScriptedRanks(3)
        for rank in range(3):
            ranks.call(rank, "send", (rank + 1) % 3, line=4)
        assert hang(ranks).headline.count("line 4") == 1

    def test_different_tags(self) -> None:
        ranks = ScriptedRanks(2)
        ranks.call(0, "send", 1, tag=1, line=3)
        ranks.call(1, "recv", 0, tag=2, line=5)
        error = hang(ranks)
        assert "different tags [1, 2]" in error.headline
        assert "line 3" in error.headline

    @pytest.mark.parametrize(("op", "without"), [("recv", "sending"), ("send", "receiving")])
    def test_a_peer_that_finished(self, op: str, without: str) -> None:
        ranks = ScriptedRanks(2)
        ranks.call(0, op, 1, line=3)
        ranks.finish(1)
        error = hang(ranks)
        assert error.headline.startswith("rank 1 ")
        assert f"finished without {without}" in error.headline
        assert "line 3" in error.headline
        assert error.cycle == ()

    def test_a_rank_that_never_enters(self) -> None:
        ranks = ScriptedRanks(4)
        for rank in (0, 1, 3):
            ranks.call(rank, "all_reduce", line=6)
        ranks.finish(2)
        error = hang(ranks)
        assert error.headline.startswith("rank 2 finished without entering all_reduce")
        assert "ranks 0, 1 and 3 wait" in error.headline
        assert "line 6" in error.headline

    def test_the_root_cause_is_named_not_the_ranks_that_wait_for_it(self) -> None:
        ranks = ScriptedRanks(3)
        ranks.call(0, "recv", 1, line=2)
        ranks.call(1, "recv", 2, line=2)
        ranks.finish(2)
        assert hang(ranks).headline.startswith("rank 2 ")

    def test_collective_against_recv(self) -> None:
        ranks = ScriptedRanks(2)
        ranks.call(0, "all_reduce", line=2)
        ranks.call(1, "recv", 0, line=5)
        error = hang(ranks)
        assert "0 → 1 → 0" in error.headline
        assert "all_reduce" in error.headline
        assert "recv from rank 0" in error.headline

    def test_groups_have_names_unless_all_ranks_are_in_them(self) -> None:
        ranks = ScriptedRanks(3)
        for name in ("low", "also low"):
            ranks.group(name, 0, 1)
        ranks.call(0, "all_reduce", group="low", line=2)
        ranks.call(1, "all_reduce", group="also low", line=3)
        ranks.call(2, "all_reduce", line=4)
        error = hang(ranks)
        assert "0 in all_reduce in group [0, 1], number 1 of 2 (" in error.headline
        assert error.table[2].call == "all_reduce (collective 1 of its group)"

    def test_a_rank_that_never_makes_a_group(self) -> None:
        ranks = ScriptedRanks(2)
        ranks.group("new_group", 0, 1)
        ranks.call(0, "new_group", group="new_group", options="[0]", line=2)
        ranks.completed(1, "all_reduce", line=9)
        ranks.finish(1)
        error = hang(ranks)
        assert error.headline.startswith("rank 1 finished without entering new_group")
        assert f"its last call: all_reduce (collective 1 of its group)   {FILE}, line 9" in str(
            error
        )
        assert explain_hang.EVERY_GROUP in error.detail

    def test_the_table_has_every_rank(self) -> None:
        ranks = ScriptedRanks(4)
        ranks.call(0, "recv", 1, line=3)
        ranks.call(1, "recv", 0, line=3)
        ranks.finish(2)
        table = hang(ranks).table
        assert [row.state for row in table] == ["waiting", "waiting", "finished", "computing"]
        assert table[0].waits_for == (1,)
        assert table[0].call == "recv from rank 1"
        assert table[0].source == f"{FILE}, line 3"


class TestMismatches:
    def test_different_collectives(self) -> None:
        ranks = ScriptedRanks(3)
        ranks.call(0, "all_reduce", line=2)
        ranks.call(1, "broadcast", line=4)
        ranks.call(2, "all_reduce", line=2)
        error = mismatch(ranks)
        assert error.headline.startswith(
            "rank 1 called broadcast, but ranks 0 and 2 called all_reduce"
        )
        assert "line 4" in error.headline
        assert [row.rank for row in error.table] == [0, 1, 2]

    def test_different_shapes(self) -> None:
        ranks = ScriptedRanks(3)
        for rank, length in enumerate((8, 8, 6)):
            ranks.call(rank, "all_reduce", shape=(length,), line=2)
        assert mismatch(ranks).headline.startswith(
            "rank 2 passed float32[6] to all_reduce, but ranks 0 and 1 passed float32[8]"
        )

    def test_different_dtypes(self) -> None:
        ranks = ScriptedRanks(2)
        ranks.call(0, "all_reduce", dtype="float32", line=2)
        ranks.call(1, "all_reduce", dtype="float64", line=2)
        assert "float64[8]" in mismatch(ranks).headline

    @pytest.mark.parametrize(
        ("op", "options", "says", "advises"),
        [
            ("broadcast", ("src=0", "src=1"), "broadcast with src=1, but rank 0 with src=0", "src"),
            ("all_reduce", ("op=SUM", "op=MAX"), "op=MAX, but rank 0 with op=SUM", "same options"),
            ("all_reduce", ("", "strides [1, 3]"), "strides [1, 3], but rank 0", "same options"),
        ],
    )
    def test_different_options(
        self, op: str, options: tuple[str, str], says: str, advises: str
    ) -> None:
        ranks = ScriptedRanks(2)
        for rank, option in enumerate(options):
            ranks.call(rank, op, options=option, line=2)
        error = mismatch(ranks)
        assert says in error.headline
        assert advises in error.detail.splitlines()[-1]

    def test_equal_bytes_in_another_shape(self) -> None:
        ranks = ScriptedRanks(2)
        ranks.call(0, "all_reduce", shape=(2, 3), line=2)
        ranks.call(1, "all_reduce", shape=(3, 2), line=2)
        assert "rank 1 passed float32[3, 2]" in mismatch(ranks).headline

    def test_groups_made_with_different_members(self) -> None:
        ranks = ScriptedRanks(4)
        ranks.group("new_group", 0, 1, 2, 3)
        for rank, members in enumerate(("[0, 1]", "[0, 1]", "[2, 3]", "[2, 3]")):
            ranks.call(rank, "new_group", group="new_group", options=members, line=2 + rank)
        error = mismatch(ranks)
        assert error.headline.startswith(
            "call 1 of new_group: ranks 0 and 1 named [0, 1], ranks 2 and 3 named [2, 3]"
        )
        assert explain_hang.EVERY_GROUP in error.detail
        assert ranks.log.finished_calls(0, lambda *_: ("", "")) == []  # it moves no tensor

    def test_a_rank_that_has_left_a_loop_earlier(self) -> None:
        ranks = ScriptedRanks(2)
        for _ in range(2):
            ranks.completed(0, "all_reduce", line=12)
            ranks.completed(1, "all_reduce", line=12)
        ranks.call(0, "all_reduce", line=12)
        ranks.completed(1, "all_reduce", shape=(1,), line=18)
        ranks.finish(1)
        error = mismatch(ranks, over=[1])
        assert error.headline.startswith(
            "rank 1 has gone on to line 18 while rank 0 is still at line 12"
        )
        assert [row.state for row in error.table] == ["waiting", "called"]

    def test_the_first_line_that_differs_is_named_where_it_came_earlier(self) -> None:
        ranks = ScriptedRanks(2)
        for rank, lines in enumerate(((4, 5, 6), (4, 7, 6))):
            for line in lines[:2]:
                ranks.completed(rank, "all_reduce", line=line)
            ranks.call(rank, "all_reduce", shape=(8 + rank,), line=lines[2])
        said = mismatch(ranks).detail.splitlines()[-1]
        assert "first differ at collective 2" in said
        assert f"{FILE}, line 5" in said
        assert f"{FILE}, line 7" in said

    def test_receive_buffer_of_the_wrong_size(self) -> None:
        ranks = ScriptedRanks(2)
        ranks.call(0, "send", 1, shape=(8,), line=2)
        ranks.call(1, "recv", 0, shape=(4,), line=5)
        headline = mismatch(ranks).headline
        assert headline.startswith("rank 1 receives into float32[4], but rank 0 sends float32[8]")
        assert "line 5" in headline


def timeout(stack: str, active: Collection[int]) -> RunTimeout:
    ranks = ScriptedRanks(3)
    ranks.call(0, "recv", 1, line=3)
    ranks.finish(2)
    stacks = {1: f"Current thread 0x1 (most recent call first):\n{stack}"}
    return explain_hang.timeout_error(5, ranks.views(), ranks.log, stacks, active, cpu_s=4.5)


def test_a_timeout_names_the_rank_that_still_computes_and_its_line() -> None:
    error = timeout(f'  File "{FILE}", line 9 in spin\n', active=[1])
    assert error.headline.startswith("the run did not end within timeout_s=5: rank 1 is")
    assert f"[{FILE}, line 9]" in error.headline
    assert [row.state for row in error.table] == ["waiting", "computing", "finished"]
    assert "larger timeout_s" in error.detail


def test_a_rank_that_uses_no_processor_is_blocked_and_needs_no_more_time() -> None:
    inside = f'  File "{queue.__file__}", line 171 in get\n  File "{FILE}", line 9 in work\n'
    error = timeout(inside, active=[])
    assert f"rank 1 is blocked in queue.get  [{FILE}, line 9]" in error.headline
    assert [row.state for row in error.table] == ["waiting", "blocked", "finished"]
    assert "timeout_s" not in error.detail
