"""The first line of every error names a rank and a line of code."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from shardlab.errors import DeadlockError
from shardlab.ranks import explain
from shardlab.ranks.client import memory_file
from shardlab.ranks.deadlock import stuck
from shardlab.ranks.process import RankProcess
from tests.shardlab.scripted_ranks import FILE, ScriptedRanks

STACKS: list[int] = []  # memory files created by `ended`


def hang(ranks: ScriptedRanks) -> DeadlockError:
    views, groups = ranks.views(), ranks.log.groups
    error = explain.deadlock_error(stuck(views, groups), views, groups)
    assert "\n" not in error.headline
    assert str(error).startswith(error.headline)
    return error


def mismatch(ranks: ScriptedRanks) -> DeadlockError:
    assert ranks.log.mismatch is not None
    return explain.mismatch_error(ranks.log.mismatch)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([2], "rank 2"),
        ([1, 0], "ranks 0 and 1"),
        ([0, 1, 3], "ranks 0, 1 and 3"),
        ([0, 1, 2, 3, 4], "ranks 0–4"),
        ([0, 2, 4, 6], "ranks 0, 2, 4 and 6"),
    ],
)
def test_ranks_as_text(ranks: list[int], text: str) -> None:
    assert explain.ranks_text(ranks) == text


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

    def test_receive_buffer_of_the_wrong_size(self) -> None:
        ranks = ScriptedRanks(2)
        ranks.call(0, "send", 1, shape=(8,), line=2)
        ranks.call(1, "recv", 0, shape=(4,), line=5)
        headline = mismatch(ranks).headline
        assert headline.startswith("rank 1 receives into float32[4], but rank 0 sends float32[8]")
        assert "line 5" in headline


def ended(rank: int, code: int, stack: str = "", max_rss_bytes: int = 0) -> RankProcess:
    """A rank that ended without an exception; its connections are not used."""
    nothing: Any = None
    STACKS.append(memory_file("stack", stack.encode()))
    return RankProcess(
        rank, nothing, nothing, STACKS[-1], exit_code=code, max_rss_bytes=max_rss_bytes
    )


def raised(rank: int, kind: str, message: str, stage: str = "run") -> RankProcess:
    """A rank that reported an exception."""
    frames = [
        [FILE, 3, "step"],
        ["/venv/lib/python3.11/site-packages/torch/nn/linear.py", 9, "forward"],
    ]
    chain = [{"kind": kind, "message": message, "frames": frames}]
    process = ended(rank, 0)
    process.failure = {"stage": stage, "chain": chain}
    return process


@pytest.fixture(autouse=True)
def _no_stack_stays_open() -> Iterator[None]:
    yield
    while STACKS:
        os.close(STACKS.pop())


class TestFailures:
    def test_exception_names_the_students_innermost_line(self) -> None:
        error = explain.exception_error(raised(2, "ValueError", "bad\nmore"))
        assert error.headline == f"rank 2 failed: ValueError: bad  [{FILE}, line 3]"
        assert (error.rank, error.kind, error.message) == (2, "ValueError", "bad\nmore")
        assert "Traceback on rank 2" in error.detail
        assert "in forward" in error.detail

    def test_an_exception_without_a_message(self) -> None:
        headline = explain.exception_error(raised(0, "AssertionError", "")).headline
        assert headline == f"rank 0 failed: AssertionError  [{FILE}, line 3]"

    def test_sys_exit_is_named(self) -> None:
        error = explain.exception_error(raised(1, "SystemExit", "3"))
        assert "called sys.exit(3)" in error.headline

    @pytest.mark.parametrize(
        ("stage", "words"),
        [("unpickle", "could not be unpickled"), ("output", "can't be sent back")],
    )
    def test_the_stage_is_named(self, stage: str, words: str) -> None:
        assert words in explain.exception_error(raised(0, "TypeError", "no", stage)).headline

    def test_causes_come_before_their_consequences(self) -> None:
        process = raised(0, "ValueError", "second")
        assert process.failure is not None
        process.failure["chain"] += [{"kind": "KeyError", "message": "first", "frames": []}]
        detail = explain.exception_error(process).detail
        assert detail.index("KeyError: first") < detail.index("ValueError: second")

    @pytest.mark.parametrize("kind", ["SIGKILL", "SIGSEGV", "SIGABRT"])
    def test_a_signal_is_named_with_a_hint(self, kind: str) -> None:
        process = ended(3, -signal.Signals[kind], max_rss_bytes=5 << 20)
        error = explain.exit_error(process, None)
        assert error.headline.startswith(f"rank 3 was killed by {kind}")
        assert explain.SIGNAL_HINTS[kind] in error.headline
        assert error.kind == kind
        assert "5 MiB" in error.detail

    def test_a_signal_without_a_name(self) -> None:
        nameless = signal.SIGRTMIN + 3
        error = explain.exit_error(ended(3, -nameless), None)
        assert str(int(nameless)) in error.headline

    def test_a_crash_names_the_students_line(self) -> None:
        stack = (
            "Fatal Python error: Segmentation fault\n\n"
            "Current thread 0x00007f (most recent call first):\n"
            f'  File "{ctypes.__file__}", line 1 in string_at\n'
            f'  File "{FILE}", line 12 in poke\n'
            f'  File "{FILE}", line 30 in step\n'
        )
        error = explain.exit_error(ended(0, -signal.SIGSEGV, stack), None)
        assert f"[{FILE}, line 12]" in error.headline

    def test_without_a_stack_the_open_call_is_named(self) -> None:
        ranks = ScriptedRanks(2)
        ranks.call(1, "recv", 0, line=8)
        error = explain.exit_error(ended(1, -signal.SIGKILL), ranks.log.calls[0])
        assert f"[in recv from rank 0, {FILE}, line 8]" in error.headline

    def test_exit_code(self) -> None:
        error = explain.exit_error(ended(0, 7), None)
        assert "rank 0 exited with code 7" in error.headline
        assert error.kind == "exit"

    @pytest.mark.parametrize("message", ["Connection closed by peer [127.0.0.1]:1", "Broken pipe"])
    def test_a_lost_connection_is_a_consequence_not_a_cause(self, message: str) -> None:
        assert explain.is_consequence(raised(0, "RuntimeError", message).failure)
        assert not explain.is_consequence(raised(0, "RuntimeError", "size mismatch").failure)


def test_a_timeout_names_the_rank_that_still_computes_and_its_line() -> None:
    ranks = ScriptedRanks(3)
    ranks.call(0, "recv", 1, line=3)
    ranks.finish(2)
    stack = f'Current thread 0x1 (most recent call first):\n  File "{FILE}", line 9 in spin\n'
    error = explain.timeout_error(5, ranks.views(), ranks.log.groups, {1: stack}, cpu_s=4.5)
    assert error.headline.startswith("the run did not end within timeout_s=5: rank 1 is")
    assert f"[{FILE}, line 9]" in error.headline
    assert [row.state for row in error.table] == ["waiting", "computing", "finished"]
    assert "larger timeout_s" in error.detail
