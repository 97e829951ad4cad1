"""The traffic matrix from synthetic counters, and the bytes that rings send."""

from __future__ import annotations

import numpy as np
import pytest

from shardlab.run import Call
from shardlab.trace.calls import CallLog
from shardlab.trace.measured_traffic import (
    FROM_CALLS,
    FROM_COUNTERS,
    from_calls,
    from_counters,
    ring_bytes,
)

AB, BA = (1000, 2000), (2000, 1000)  # the two ends of one connection between ranks 0 and 1
OUTSIDE = (1000, 9999)  # the other end belongs to no rank


def make_call(op: str, rank: int, n_bytes: int, group: tuple[int, ...], **more: object) -> Call:
    values = {
        "peer": None, "start_s": 0.0, "end_s": 1.0, "source": "", "seq": 1, "dtype": "float32",
        "shape": (n_bytes // 4,), "offset": 0, "storage_numel": n_bytes // 4, **more,
    }  # fmt: skip
    return Call(rank=rank, op=op, bytes=n_bytes, group=group, **values)  # type: ignore[arg-type]


class TestFromCounters:
    def test_the_difference_of_two_readings(self) -> None:
        found = from_counters(
            CallLog(2), {AB: (0, 100), BA: (1, 40)}, {AB: (0, 600), BA: (1, 40)}, 0.0
        )
        assert found.sent_bytes.tolist() == [[0, 500], [0, 0]]
        assert found.source == FROM_COUNTERS

    def test_connections_outside_the_ranks_are_not_traffic(self) -> None:
        found = from_counters(CallLog(2), {}, {OUTSIDE: (0, 600)}, 0.0)
        assert found.sent_bytes.sum() == 0

    def test_several_connections_of_a_pair_add_up(self) -> None:
        after = {AB: (0, 5), BA: (1, 0), (1001, 2001): (0, 7), (2001, 1001): (1, 0)}
        found = from_counters(CallLog(2), {}, after, 0.0)
        assert found.sent_bytes.tolist() == [[0, 12], [0, 0]]

    def test_handshakes_of_new_groups_are_left_out(self) -> None:
        log = CallLog(2)
        log.add(0, ["opened", {"1000:2000": 80}])
        found = from_counters(log, {}, {AB: (0, 580), BA: (1, 0)}, 0.0)
        assert found.sent_bytes[0, 1] == 500

    def test_sockets_closed_between_readings_are_counted(self) -> None:
        log = CallLog(2)
        log.add(0, ["opened", {"1000:2000": 80}])
        log.add(0, ["closing", {"1000:2000": 380}])
        log.add(1, ["closing", {"2000:1000": 0}])
        assert from_counters(log, {}, {}, 0.0).sent_bytes[0, 1] == 300

    def test_blocks_by_peer(self) -> None:
        log = CallLog(2)
        log.add(0, ["block", "step", 11.0, 12.0, {"1000:2000": 30, "1000:9999": 4}])
        log.add(0, ["block", "step", 13.0, 14.0, {"1000:2000": 12}])
        found = from_counters(log, {}, {AB: (0, 42), BA: (1, 0)}, 10.0)
        assert found["step"].sent_bytes.tolist() == [[0, 42], [0, 0]]
        assert [(block.start_s, block.end_s) for block in found.blocks] == [(1.0, 2.0), (3.0, 4.0)]


class TestRingBytes:
    """Each rank passes in S = 1200 bytes."""

    S = 1200

    @pytest.mark.parametrize("n", [2, 3, 4, 8])
    @pytest.mark.parametrize(
        ("op", "factor"),
        [
            ("all_reduce", lambda n: 2 * (n - 1) / n),
            ("reduce_scatter", lambda n: (n - 1) / n),
            ("reduce_scatter_single", lambda n: (n - 1) / n),
            ("all_gather", lambda n: n - 1),
            ("all_gather_single", lambda n: n - 1),
        ],
    )
    def test_each_rank_sends_the_same_to_the_next(self, op: str, factor: object, n: int) -> None:
        group = tuple(range(n))
        sent = ring_bytes([make_call(op, rank, self.S, group) for rank in group], n)
        expected = np.zeros((n, n), dtype=np.int64)
        for rank in group:
            expected[rank, (rank + 1) % n] = round(factor(n) * self.S)  # type: ignore[operator]
        assert sent.tolist() == expected.tolist()

    def test_a_subgroup_has_its_own_ring(self) -> None:
        group = (1, 3)
        sent = ring_bytes([make_call("all_reduce", r, self.S, group) for r in group], 4)
        assert {(r, c): sent[r, c] for r, c in zip(*sent.nonzero(), strict=True)} == {
            (1, 3): self.S,
            (3, 1): self.S,
        }

    def test_broadcast_sends_n_minus_1_times(self) -> None:
        group = (0, 1, 2, 3)
        sent = ring_bytes([make_call("broadcast", r, self.S, group) for r in group], 4)
        assert sent.sum() == 3 * self.S

    def test_all_to_all(self) -> None:
        group = (0, 1, 2, 3)
        sent = ring_bytes([make_call("all_to_all", r, self.S, group) for r in group], 4)
        assert sent.tolist() == [[0 if r == c else 300 for c in group] for r in group]

    def test_send_counts_once(self) -> None:
        calls = [
            make_call("send", 0, self.S, (0, 1), peer=1),
            make_call("recv", 1, self.S, (0, 1), peer=0),
        ]
        assert ring_bytes(calls, 2).tolist() == [[0, self.S], [0, 0]]

    @pytest.mark.parametrize(("op", "sender"), [("gather", 1), ("scatter", 0)])
    def test_gather_and_scatter(self, op: str, sender: int) -> None:
        sent = ring_bytes([make_call(op, r, self.S, (0, 1)) for r in (0, 1)], 2)
        assert sent[sender, 1 - sender] == self.S == sent.sum()

    def test_a_single_rank_sends_nothing(self) -> None:
        assert ring_bytes([make_call("all_reduce", 0, self.S, (0,))], 1).tolist() == [[0]]


def test_from_calls_a_block_contains_the_calls_that_began_in_it() -> None:
    log = CallLog(2)
    log.add(0, ["block", "first", 10.0, 11.0, {}])
    calls = [
        make_call("send", 0, 100, (0, 1), peer=1, start_s=0.5),
        make_call("send", 0, 30, (0, 1), peer=1, start_s=1.5),
    ]
    found = from_calls(log, calls, 10.0)
    assert found.sent_bytes[0, 1] == 130
    assert found["first"].sent_bytes[0, 1] == 100
    assert found.source == FROM_CALLS
