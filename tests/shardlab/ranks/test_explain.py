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
from tests.shardlab.story import FILE, Story

STACKS: list[int] = []  # memory files that `ended` has made


def hang(story: Story) -> DeadlockError:
    views, groups = story.views(), story.log.groups
    error = explain.deadlock_error(stuck(views, groups), views, groups)
    assert "\n" not in error.headline
    assert str(error).startswith(error.headline)
    return error


def mismatch(story: Story) -> DeadlockError:
    assert story.log.mismatch is not None
    return explain.mismatch_error(story.log.mismatch)


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
def test_ranks_in_words(ranks: list[int], text: str) -> None:
    assert explain.ranks_text(ranks) == text


class TestHangs:
    @pytest.mark.parametrize(("op", "missing"), [("send", "receive"), ("recv", "send")])
    def test_mutual(self, op: str, missing: str) -> None:
        story = Story(2)
        story.call(0, op, 1, line=7)
        story.call(1, op, 0, line=9)
        error = hang(story)
        assert "0 → 1 → 0" in error.headline
        assert f"all wait in {op}" in error.headline
        assert f"needs the next one to {missing}" in error.headline
        assert f"{FILE}, line 7" in error.headline
        assert f"{FILE}, line 9" in error.headline
        assert error.cycle == (0, 1)

    def test_each_line_of_a_shared_function_is_named_once(self) -> None:
        story = Story(3)
        for rank in range(3):
            story.call(rank, "send", (rank + 1) % 3, line=4)
        assert hang(story).headline.count("line 4") == 1

    def test_different_tags(self) -> None:
        story = Story(2)
        story.call(0, "send", 1, tag=1, line=3)
        story.call(1, "recv", 0, tag=2, line=5)
        error = hang(story)
        assert "different tags [1, 2]" in error.headline
        assert "line 3" in error.headline

    @pytest.mark.parametrize(("op", "without"), [("recv", "sending"), ("send", "receiving")])
    def test_a_partner_that_finished(self, op: str, without: str) -> None:
        story = Story(2)
        story.call(0, op, 1, line=3)
        story.finish(1)
        error = hang(story)
        assert error.headline.startswith("rank 1 ")
        assert f"finished without {without}" in error.headline
        assert "line 3" in error.headline
        assert error.cycle == ()

    def test_a_rank_that_never_enters(self) -> None:
        story = Story(4)
        for rank in (0, 1, 3):
            story.call(rank, "all_reduce", line=6)
        story.finish(2)
        error = hang(story)
        assert error.headline.startswith("rank 2 finished without entering all_reduce")
        assert "ranks 0, 1 and 3 wait" in error.headline
        assert "line 6" in error.headline

    def test_the_root_is_named_not_who_waits_behind_it(self) -> None:
        story = Story(3)
        story.call(0, "recv", 1, line=2)
        story.call(1, "recv", 2, line=2)
        story.finish(2)
        assert hang(story).headline.startswith("rank 2 ")

    def test_collective_against_recv(self) -> None:
        story = Story(2)
        story.call(0, "all_reduce", line=2)
        story.call(1, "recv", 0, line=5)
        error = hang(story)
        assert "0 → 1 → 0" in error.headline
        assert "all_reduce" in error.headline
        assert "recv from rank 0" in error.headline

    def test_the_table_tells_every_rank(self) -> None:
        story = Story(4)
        story.call(0, "recv", 1, line=3)
        story.call(1, "recv", 0, line=3)
        story.finish(2)
        table = hang(story).table
        assert [row.state for row in table] == ["waiting", "waiting", "finished", "computing"]
        assert table[0].waits_for == (1,)
        assert table[0].call == "recv from rank 1"
        assert table[0].source == f"{FILE}, line 3"


class TestMismatches:
    def test_other_collective(self) -> None:
        story = Story(3)
        story.call(0, "all_reduce", line=2)
        story.call(1, "broadcast", line=4)
        story.call(2, "all_reduce", line=2)
        error = mismatch(story)
        assert error.headline.startswith(
            "rank 1 called broadcast where ranks 0 and 2 called all_reduce"
        )
        assert "line 4" in error.headline
        assert [row.rank for row in error.table] == [0, 1, 2]

    def test_other_shape(self) -> None:
        story = Story(3)
        for rank, length in enumerate((8, 8, 6)):
            story.call(rank, "all_reduce", shape=(length,), line=2)
        assert mismatch(story).headline.startswith(
            "rank 2 gave all_reduce float32[6] where ranks 0 and 1 gave float32[8]"
        )

    def test_other_dtype(self) -> None:
        story = Story(2)
        story.call(0, "all_reduce", dtype="float32", line=2)
        story.call(1, "all_reduce", dtype="float64", line=2)
        assert "float64[8]" in mismatch(story).headline

    def test_receive_buffer_of_another_size(self) -> None:
        story = Story(2)
        story.call(0, "send", 1, shape=(8,), line=2)
        story.call(1, "recv", 0, shape=(4,), line=5)
        headline = mismatch(story).headline
        assert headline.startswith(
            "rank 1 receives into float32[4] what rank 0 sends as float32[8]"
        )
        assert "line 5" in headline


def ended(rank: int, code: int, stack: str = "", max_rss_bytes: int = 0) -> RankProcess:
    """A rank that has ended without a word; its lines of communication are not looked at."""
    nothing: Any = None
    STACKS.append(memory_file("stack", stack.encode()))
    return RankProcess(
        rank, nothing, nothing, STACKS[-1], exit_code=code, max_rss_bytes=max_rss_bytes
    )


def raised(rank: int, kind: str, message: str, stage: str = "run") -> RankProcess:
    """A rank that has told of an exception."""
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

    def test_an_exception_without_a_word(self) -> None:
        headline = explain.exception_error(raised(0, "AssertionError", "")).headline
        assert headline == f"rank 0 failed: AssertionError  [{FILE}, line 3]"

    def test_sys_exit_is_called_by_its_name(self) -> None:
        error = explain.exception_error(raised(1, "SystemExit", "3"))
        assert "called sys.exit(3)" in error.headline

    @pytest.mark.parametrize(
        ("stage", "words"),
        [("unpickle", "could not be rebuilt"), ("output", "can't be sent back")],
    )
    def test_the_stage_is_told(self, stage: str, words: str) -> None:
        assert words in explain.exception_error(raised(0, "TypeError", "no", stage)).headline

    def test_causes_come_before_what_they_caused(self) -> None:
        process = raised(0, "ValueError", "second")
        assert process.failure is not None
        process.failure["chain"] += [{"kind": "KeyError", "message": "first", "frames": []}]
        detail = explain.exception_error(process).detail
        assert detail.index("KeyError: first") < detail.index("ValueError: second")

    @pytest.mark.parametrize("kind", ["SIGKILL", "SIGSEGV", "SIGABRT"])
    def test_a_signal_is_named_and_hinted_at(self, kind: str) -> None:
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

    def test_line_of_a_crash_is_the_students(self) -> None:
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
        story = Story(2)
        story.call(1, "recv", 0, line=8)
        error = explain.exit_error(ended(1, -signal.SIGKILL), story.log.calls[0])
        assert f"[in recv from rank 0, {FILE}, line 8]" in error.headline

    def test_exit_code(self) -> None:
        error = explain.exit_error(ended(0, 7), None)
        assert "rank 0 exited with code 7" in error.headline
        assert error.kind == "exit"

    @pytest.mark.parametrize("message", ["Connection closed by peer [127.0.0.1]:1", "Broken pipe"])
    def test_an_echo_of_anothers_death_is_no_cause(self, message: str) -> None:
        assert explain.is_consequence(raised(0, "RuntimeError", message).failure)
        assert not explain.is_consequence(raised(0, "RuntimeError", "size mismatch").failure)


def test_timeout_names_who_still_computes_and_where() -> None:
    story = Story(3)
    story.call(0, "recv", 1, line=3)
    story.finish(2)
    stack = f'Current thread 0x1 (most recent call first):\n  File "{FILE}", line 9 in spin\n'
    error = explain.timeout_error(5, story.views(), story.log.groups, {1: stack})
    assert error.headline.startswith("the run did not end within timeout_s=5: rank 1 is")
    assert f"[{FILE}, line 9]" in error.headline
    assert [row.state for row in error.table] == ["waiting", "computing", "finished"]
    assert "larger timeout_s" in error.detail
