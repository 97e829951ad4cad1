"""Where the calls of a wrong answer begin to differ from the solution's."""

from __future__ import annotations

import numpy as np
import pytest

from autograder.exercise import Attempt, Case
from autograder.exercise.call_difference import RightCall, calls_of, first_difference
from shardlab.errors import DeadlockError, LaunchError, Waiting
from shardlab.run import Call, Run, Traffic

RING: list[list[RightCall]] = [
    [("send", 1, 8), ("recv", 1, 8), ("all_reduce", None, 4)],
    [("send", 0, 8), ("recv", 0, 8), ("all_reduce", None, 4)],
]


def attempt(calls: list[list[RightCall]], error: LaunchError | None = None) -> Attempt:
    made = [
        Call(rank, op, n_bytes, peer, (0, 1), 0.0, 0.1, "cell 5, line 3", 1, "float32", (2,), 0, 2)
        for rank, of_rank in enumerate(calls)
        for op, peer, n_bytes in of_rank
    ]
    traffic = Traffic(np.zeros((2, 2), np.int64), "test")
    run = Run(2, "cpu", "", [0, 0], ["", ""], ["", ""], traffic, made, 0.1, 0.2)
    return Attempt(Case("2 ranks", 2), [0, 0], [1, 1], [0, 0], run, error)


def hang(*states: str) -> DeadlockError:
    rows = (Waiting(rank, state, "recv", (), "") for rank, state in enumerate(states))
    return DeadlockError("deadlock", table=tuple(rows))


def test_calls_of_a_run() -> None:
    run = attempt(RING).run
    assert run is not None
    assert calls_of(run) == RING
    run.calls.clear()
    assert calls_of(run) is None


def test_calls_without_a_line_of_the_students_are_left_out() -> None:
    of_library = ("all_gather", None, 26857)
    for more in ([of_library], [of_library, of_library]):
        found = attempt([[*more, *RING[0]], [*more, *RING[1][1:]]])
        assert found.run is not None
        for call in found.run.calls:
            if call.op == "all_gather":
                object.__setattr__(call, "source", "")
        assert first_difference(found, RING).startswith("rank 1 returns after 2 calls;")
        assert calls_of(found.run) == [RING[0], RING[1][1:]]


RECEIVES_FIRST = [[calls[1], calls[0], calls[2]] for calls in RING]


@pytest.mark.parametrize("calls", [RING, RECEIVES_FIRST])
def test_send_and_receive_may_be_in_either_order(calls: list[list[RightCall]]) -> None:
    assert first_difference(attempt(calls), RING) == ""


@pytest.mark.parametrize(
    ("calls", "error", "sentence"),
    [
        (
            [RING[0], [("send", 0, 4), *RING[1][1:]]],
            None,
            "rank 1, call 1: sends float32[2], 4 B to rank 0 [cell 5, line 3]; the course's "
            "solution sends 8 B to rank 0 there.",
        ),
        (
            [[*RING[0], ("barrier", None, 0)], RING[1]],
            None,
            "rank 0, call 4: calls barrier [cell 5, line 3]; the course's solution makes no more "
            "such calls.",
        ),
        (
            [RING[0], RING[1][:2]],
            None,
            "rank 1 returns after 2 calls; the course's solution also calls all_reduce with 4 B.",
        ),
        (
            [RECEIVES_FIRST[0][:1], RECEIVES_FIRST[1][:1]],
            hang("waiting", "waiting"),
            "rank 0, call 1: receives float32[2], 8 B from rank 1 [cell 5, line 3]; the course's "
            "solution sends 8 B to rank 1 there.",
        ),
        (
            [RING[0][:2], []],
            hang("waiting", "finished"),
            "rank 1 returns after 0 calls; the course's solution also sends 8 B to rank 0.",
        ),
        ([RING[0][:2], RING[1][:2]], hang("waiting", "waiting"), ""),
    ],
)
def test_the_first_difference_is_a_sentence(
    calls: list[list[RightCall]], error: LaunchError | None, sentence: str
) -> None:
    assert first_difference(attempt(calls, error), RING) == sentence
