"""The first line of every error names a rank and a line of code."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from shardlab.ranks import explain
from shardlab.ranks.client import memory_file
from shardlab.ranks.process import RankProcess
from shardlab.trace.calls import CallLog
from tests.shardlab.scripted_ranks import FILE, ScriptedRanks

NO_CALLS = CallLog(1)
STACKS: list[int] = []  # memory files created by `ended`


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

    @pytest.mark.parametrize(
        ("message", "says"),
        [
            (
                "Error(s) in loading state_dict for Linear:\n\tsize mismatch for weight",
                "size mismat",
            ),
            ("\n  CUDA error: no kernel\nmore", "CUDA error: no kernel  ["),
            ("x" * 900, "x" * 200),
        ],
    )
    def test_the_headline_is_the_first_line_that_says_something(
        self, message: str, says: str
    ) -> None:
        headline = explain.exception_error(raised(0, "RuntimeError", message)).headline
        assert says in headline
        assert len(headline) < 320

    @pytest.mark.parametrize(
        ("kind", "message", "says"),
        [
            ("TypeError", "main() missing 1 required positional argument: 'rank'", "get_rank()"),
            ("ValueError", "trying to initialize the default process group twice!", "delete this"),
            ("KeyError", "'MASTER_ADDR'", "without an address"),
            ("AssertionError", "Torch not compiled with CUDA enabled", "on the CPU"),
            (
                "AttributeError",
                "module 'torch._C' has no attribute '_cuda_setDevice'",
                "set_device",
            ),
        ],
    )
    def test_a_script_for_torchrun_or_a_gpu_is_told_what_to_change(
        self, kind: str, message: str, says: str
    ) -> None:
        assert (
            says in explain.exception_error(raised(0, kind, message)).detail.split("Traceback")[0]
        )

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
        error = explain.exit_error(process, None, NO_CALLS)
        assert error.headline.startswith(f"rank 3 was killed by {kind}")
        assert explain.SIGNAL_HINTS[kind] in error.headline
        assert error.kind == kind
        assert "5 MiB" in error.detail

    def test_a_signal_without_a_name(self) -> None:
        nameless = signal.SIGRTMIN + 3
        error = explain.exit_error(ended(3, -nameless), None, NO_CALLS)
        assert str(int(nameless)) in error.headline

    def test_a_crash_names_the_students_line(self) -> None:
        stack = (
            "Fatal Python error: Segmentation fault\n\n"
            "Current thread 0x00007f (most recent call first):\n"
            f'  File "{ctypes.__file__}", line 1 in string_at\n'
            f'  File "{FILE}", line 12 in poke\n'
            f'  File "{FILE}", line 30 in step\n'
        )
        error = explain.exit_error(ended(0, -signal.SIGSEGV, stack), None, NO_CALLS)
        assert f"[{FILE}, line 12]" in error.headline

    def test_without_a_stack_the_open_call_is_named(self) -> None:
        ranks = ScriptedRanks(2)
        ranks.call(1, "recv", 0, line=8)
        error = explain.exit_error(ended(1, -signal.SIGKILL), ranks.log.calls[0], ranks.log)
        assert f"[in recv from rank 0, {FILE}, line 8]" in error.headline

    def test_exit_code(self) -> None:
        error = explain.exit_error(ended(0, 7), None, NO_CALLS)
        assert "rank 0 exited with code 7" in error.headline
        assert error.kind == "exit"

    @pytest.mark.parametrize("message", ["Connection closed by peer [127.0.0.1]:1", "Broken pipe"])
    def test_a_lost_connection_is_a_consequence_not_a_cause(self, message: str) -> None:
        assert explain.is_consequence(raised(0, "RuntimeError", message).failure)
        assert not explain.is_consequence(raised(0, "RuntimeError", "size mismatch").failure)
