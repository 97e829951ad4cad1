"""Events in a log become calls."""

from __future__ import annotations

from typing import Any

import pytest

from shardlab.trace.calls import DTYPES, NEW_GROUP, OPS, CallLog
from tests.shardlab.scripted_ranks import ScriptedRanks, call_event


def changed_event(at: int, to: Any) -> list[Any]:
    event = call_event(1, "send", 0)
    event[at] = to
    return event


def locate(filename: str, line: int) -> tuple[str, str]:
    return f"{filename}:{line}", "the code"


def test_a_call_from_begin_to_end() -> None:
    log = CallLog(2)
    log.add(1, ["group", "world", [0, 1]])
    log.add(1, call_event(5, "send", 0, shape=(2, 3), line=4, tag=9, start_s=11.0))
    log.add(1, ["wait", 5, 11.25])
    assert log.pending[1][5].waited
    log.add(1, ["end", 5, 11.5])
    assert log.pending[1] == {}
    (call,) = log.finished_calls(10.0, locate)
    assert (call.rank, call.op, call.peer, call.group, call.tag) == (1, "send", 0, (0, 1), 9)
    assert (call.start_s, call.wait_start_s, call.end_s) == (1.0, 1.25, 1.5)
    assert (call.bytes, call.shape, call.dtype) == (24, (2, 3), "float32")
    assert (call.source, call.code) == ("student.py:4", "the code")
    assert call.is_p2p


def test_an_asynchronous_call_counts_as_waited_only_after_a_wait() -> None:
    log = CallLog(1)
    for number, event in ((1, "wait"), (2, "waited"), (3, "end")):
        log.add(0, [*call_event(number, "all_reduce", start_s=number)[:-1], None])
        log.add(0, [event, number, *([] if event == "waited" else [4.0])])
    assert [call.waited for call in log.finished_calls(0.0, locate)] == [True, True, False]


def test_a_call_that_never_ended_has_no_end() -> None:
    log = CallLog(1)
    log.add(0, call_event(1, "barrier", shape=()))
    (call,) = log.finished_calls(0.0, locate)
    assert call.end_s is None
    assert not call.is_p2p


def test_calls_are_sorted_by_start() -> None:
    log = CallLog(2)
    log.add(0, call_event(1, "barrier", start_s=3.0))
    log.add(1, call_event(1, "barrier", start_s=2.0))
    assert [call.rank for call in log.finished_calls(0.0, locate)] == [1, 0]


def test_collectives_are_numbered_by_group_and_p2p_by_pair_and_tag() -> None:
    ranks = ScriptedRanks(3)
    ranks.group("sub", 0, 1)
    for group in ("world", "sub", "world"):
        ranks.completed(0, "all_reduce", group=group)
    for peer, tag in ((1, 0), (2, 0), (1, 0), (1, 7)):
        ranks.completed(0, "send", peer, tag=tag)
    ranks.completed(0, "recv", 1)
    assert [call.seq for call in ranks.log.calls] == [1, 1, 2, 1, 1, 2, 1, 1]


@pytest.mark.parametrize(
    "event",
    [
        ["call"],
        ["call", 1, "send"],
        ["call", 1, "send", "many", 0, "g", 0.0, "f", 1, "float32", [1], 0, 1, 0, False],
        ["call", 1, "send", 4, 0, "g", 0.0, "f", 1, "float32", None, 0, 1, 0, False],
        call_event(1, "send", 99),
        call_event(1, "send", -1),
        call_event([], "send", 0),
        ["call", 1, "send", float("inf"), 0, "g", 0.0, "f", 1, "float32", [1], 0, 1, 0, False],
        ["call", 1, "send", 4, "0", "g", 0.0, "f", 1, "float32", [1], 0, 1, 0, False],
        ["call", 1, "send", 4, 0.5, "g", 0.0, "f", 1, "float32", [1], 0, 1, 0, False],
        ["end", 77, 1.0],
        ["end"],
        ["wait", "never begun", 1.0],
        ["wait", {}, 1.0],
        ["wait", 1, "now"],
        ["group", "g", ["x"]],
        ["group", "g", None],
        ["block", "b"],
        ["block", "b", 0, 1, {"12": 3}],
        ["opened", {"a:b": 1}],
        ["opened", 5],
        ["closing"],
        ["span", "aten::mm", "waiting", 1.0, 2.0],
        ["span", "aten::mm", "compute", "now", 2.0],
        ["no such kind", 1, 2],
        [None],
        [["call"], 1],
    ],
    ids=repr,
)
def test_events_that_no_recorder_writes_are_skipped(event: list[Any]) -> None:
    log = CallLog(2)
    log.add(0, event)
    assert log.pending == [{}, {}]
    assert log.groups == {}
    assert (log.blocks, log.opened, log.closing, log.spans) == ([], [], [], [])
    assert log.mismatch is None
    log.add(0, call_event(1, "barrier"))
    assert len(log.finished_calls(0.0, locate)) == 1


def test_blocks_and_sockets() -> None:
    log = CallLog(1)
    log.add(0, ["block", "step", 1.0, 2.0, {"10:20": 5}])
    log.add(0, ["opened", {"10:20": 7}])
    log.add(0, ["closing", {"10:20": 9}])
    assert log.blocks[0].sent == {(10, 20): 5}
    assert log.opened == [(0, {(10, 20): 7})]
    assert log.closing == [(0, {(10, 20): 9})]


class TestMismatch:
    def test_equal_calls_are_not_a_mismatch(self) -> None:
        ranks = ScriptedRanks(3)
        for rank in range(3):
            ranks.call(rank, "all_reduce")
        assert ranks.log.mismatch is None
        assert ranks.log.unmatched == {}  # matched calls are removed

    def test_a_different_op(self) -> None:
        ranks = ScriptedRanks(3)
        for rank, op in enumerate(("all_reduce", "broadcast", "all_reduce")):
            ranks.call(rank, op)
        assert ranks.log.mismatch is not None
        assert [call.op for call in ranks.log.mismatch.calls] == [
            "all_reduce",
            "broadcast",
            "all_reduce",
        ]

    @pytest.mark.parametrize("changed", [{"shape": (9,)}, {"dtype": "float64"}])
    def test_a_different_tensor(self, changed: dict[str, Any]) -> None:
        ranks = ScriptedRanks(2)
        ranks.call(0, "all_reduce")
        ranks.call(1, "all_reduce", **changed)
        assert ranks.log.mismatch is not None

    @pytest.mark.parametrize(
        ("shape", "is_mismatch"), [((8,), False), ((2, 1, 4), False), ((4, 2), True)]
    )
    def test_the_same_bytes_in_another_shape(
        self, shape: tuple[int, ...], is_mismatch: bool
    ) -> None:
        """A flat view has the same elements in the same order."""
        ranks = ScriptedRanks(2)
        ranks.call(0, "all_reduce", shape=shape)
        ranks.call(1, "all_reduce", shape=(2, 4))
        assert bool(ranks.log.mismatch) is is_mismatch

    @pytest.mark.parametrize(
        ("options", "is_mismatch"),
        [("op=SUM", True), ("op=MAX", False), ("", False), ("strides [1, 2]", True)],
    )
    def test_a_reduction_that_is_unknown_agrees_with_any(
        self, options: str, is_mismatch: bool
    ) -> None:
        ranks = ScriptedRanks(2)
        ranks.call(0, "all_reduce", options="op=MAX")
        ranks.call(1, "all_reduce", options=options)
        assert bool(ranks.log.mismatch) is is_mismatch

    def test_a_send_to_nobody_is_no_call(self) -> None:
        ranks = ScriptedRanks(2)
        ranks.log.add(0, call_event(1, "send"))
        assert ranks.log.calls == []

    def test_all_to_all_may_differ(self) -> None:
        ranks = ScriptedRanks(2)
        ranks.call(0, "all_to_all_single", shape=(8,))
        ranks.call(1, "all_to_all_single", shape=(6,))
        assert ranks.log.mismatch is None

    def test_calls_of_different_groups_do_not_match(self) -> None:
        ranks = ScriptedRanks(2)
        ranks.group("a", 0, 1)
        ranks.group("b", 0, 1)
        ranks.call(0, "all_reduce", group="a")
        ranks.call(1, "broadcast", group="b")
        assert ranks.log.mismatch is None

    def test_send_and_recv_of_different_sizes(self) -> None:
        ranks = ScriptedRanks(2)
        ranks.call(0, "send", 1, shape=(8,))
        ranks.call(1, "recv", 0, shape=(4,))
        assert ranks.log.mismatch is not None

    def test_a_send_to_another_rank_does_not_match(self) -> None:
        ranks = ScriptedRanks(3)
        ranks.call(0, "send", 1, shape=(8,))
        ranks.call(2, "recv", 0, shape=(4,))
        assert ranks.log.mismatch is None


def test_thousands_of_mismatches_take_no_longer_each() -> None:
    """Comparing each with all others would take minutes."""
    log = CallLog(2)
    log.add(0, ["group", "world", [0, 1]])
    for number in range(20_000, 0, -1):
        log.add(0, call_event(number, "send", 1, tag=number))
        log.add(1, call_event(number, "recv", 0, tag=number, shape=(9,)))
    assert log.mismatch is not None
    assert [call.tag for call in log.mismatch.calls] == [20_000, 20_000]


@pytest.mark.parametrize(
    ("at", "to"),
    [(9, "the student's own text"), (14, "op=MAX, and more text"), (2, "steals"), (9, ["float32"])],
)
def test_a_students_text_is_no_dtype_option_or_operation(at: int, to: Any) -> None:
    log = CallLog(2)
    log.add(0, changed_event(at, to))
    assert log.calls == []


def test_all_dtypes_and_operations_are_known() -> None:
    import torch

    from shardlab.trace.recorder import OPERATORS

    dtypes = {str(value) for value in vars(torch).values() if isinstance(value, torch.dtype)}
    assert {*DTYPES} == {name.removeprefix("torch.") for name in dtypes} | {""}
    assert {*OPS} == {op for op, _ in OPERATORS.values()} | {NEW_GROUP}


@pytest.mark.parametrize(
    "options", ["", "op=PREMUL_SUM", "src=0", "op=MAX, dst=3, strides [1, 8]", "[0, 1]", "[]"]
)
def test_options_that_a_recorder_writes(options: str) -> None:
    log = CallLog(2)
    log.add(0, call_event(1, "all_reduce", options=options))
    assert [call.options for call in log.calls] == [options]
